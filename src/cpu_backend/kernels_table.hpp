// The table of this kernel source. Included inside the anonymous namespace of each kernel source.
#pragma once

constexpr Kernels kTable = {quantize,   wide_bytes, quantize_wide, dot,          rms_norm, expert_act,
                            expert_add, add_to,     convolve,      l2_normalise, gates,    delta_rule,
                            norm_rope,  store_kv,   attend,        route,        argmax};
#undef FTMPI_UNROLLED
