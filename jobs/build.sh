#!/usr/bin/env bash
# Configures and builds into build/ of this checkout, and says whether GPUs will be used; arguments go to cmake.
# FTMPI_CUDA=AUTO|ON|OFF chooses the CUDA backend. Left open, it is AUTO where a GPU is seen (built for the GPUs seen, when
# nvcc and NCCL are found) and OFF elsewhere; ON without a GPU builds for all architectures, or for FTMPI_CUDA_ARCHS.
set -eu
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
options=()
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | paste -sd, || true)
cuda=${FTMPI_CUDA:-AUTO}
[ -n "$gpus" ] || cuda=${FTMPI_CUDA:-OFF}
archs=${FTMPI_CUDA_ARCHS:-}
if [ -z "$archs" ] && [ -n "$gpus" ]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | sed 's/$/-real/' | paste -sd ';')
fi
[ -z "$archs" ] || options+=("-DFTMPI_CUDA_ARCHS=$archs")
# A build folder keeps the generator it was made with.
if [ ! -f "$top/build/CMakeCache.txt" ] && command -v ninja >/dev/null; then options+=(-G Ninja); fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
cmake -S "$top" -B "$top/build" -DFTMPI_CUDA="$cuda" ${options[@]+"${options[@]}"} "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
backend=$(sed -n 's/^-- CUDA backend: *//p' "$log")
case $backend in
    ON*) echo "CUDA: used, for ${archs:-all architectures}; GPUs here: ${gpus:-none}" ;;
    *)
        echo "CUDA: not used (${backend:+$backend; }FTMPI_CUDA=$cuda; GPUs here: ${gpus:-none}). The CPU gives the same bits, slower."
        echo "      GPUs need: NVIDIA driver, CUDA toolkit 12.8 or newer with nvcc in PATH, NCCL (nccl.h, libnccl). Then run this again." ;;
esac
cmake --build "$top/build" --parallel "$(nproc)" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
grep -E 'warning:' "$log" || true
echo "build: build/ is up to date after $((SECONDS - started)) s"
