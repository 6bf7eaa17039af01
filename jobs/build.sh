#!/usr/bin/env bash
# Configures and builds into build/ of this checkout; arguments go to cmake. Says which GPU parts were found.
# FTMPI_CUDA=AUTO|ON|OFF chooses the CUDA backend (AUTO: when CUDA and NCCL are found).
set -eu
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cuda=${FTMPI_CUDA:-AUTO}
if [ "$cuda" != OFF ]; then
    nvcc=$(command -v nvcc || ls -d /usr/local/cuda/bin/nvcc 2>/dev/null || true)
    nccl=$(ls /usr/include/nccl.h /usr/local/cuda/include/nccl.h /usr/include/*/nccl.h 2>/dev/null | head -n 1 || true)
    gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | paste -sd ',' || true)
    if [ -n "$nvcc" ]; then
        echo "CUDA: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') ($nvcc), NCCL: ${nccl:-not found}, GPUs: ${gpus:-none here}"
    fi
    if [ -z "$nvcc" ] || [ -z "$nccl" ]; then
        echo "CUDA: ${gpus:+GPUs $gpus, but }no GPU is used without the CUDA toolkit (12.8 or newer, nvcc) and NCCL (libnccl-dev);"
        echo "      install them and run this again for GPUs. The CPU gives the same bits, slower."
    fi
fi
generator=()
# A build folder keeps the generator it was made with.
if [ ! -f "$top/build/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
cmake -S "$top" -B "$top/build" ${generator[@]+"${generator[@]}"} -DFTMPI_CUDA="$cuda" "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build "$top/build" --parallel "$(nproc)" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
grep -E 'warning:' "$log" || true
echo "build: build/ is up to date after $((SECONDS - started)) s"
