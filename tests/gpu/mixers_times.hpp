// The timing half of mixers_check.
#pragma once

namespace ftmpi::gpu_check {

/// Prints the times of both mixers at the real model's size. About 15 GiB of device memory.
void time_mixers();

}  // namespace ftmpi::gpu_check
