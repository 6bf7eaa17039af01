#!/usr/bin/env bash
# Installs what is missing, builds build/ with the tests, and runs them all. Can be run again, from any folder.
# FTMPI_SANITIZE=address,undefined builds build-sanitize/ instead, without CUDA, and runs all but the fuzz targets there.
# FTMPI_CUDA=ON builds the CUDA backend too; without a GPU to look at, for one architecture only (FTMPI_CUDA_ARCHS).
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
step() { echo "== $1 (at $SECONDS s)"; }
step "packages"
jobs/install_packages.sh --tests

if [ -n "${CI:-}" ]; then export FTMPI_CUDA=${FTMPI_CUDA:-OFF}; fi
# Building for a GPU that is not here shows that the code compiles, and one architecture shows it as well as six.
if [ "${FTMPI_CUDA:-}" = ON ] && ! nvidia-smi -L >/dev/null 2>&1; then export FTMPI_CUDA_ARCHS=${FTMPI_CUDA_ARCHS:-86-real}; fi
step "build"
build=build
except=()
if [ -n "${FTMPI_SANITIZE:-}" ]; then
    build=build-sanitize
    except=(-E '^fuzz$')  # has sanitizers of its own
    export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
    cmake -S . -B $build -G Ninja -DFTMPI_CUDA=OFF "-DFTMPI_SANITIZE=$FTMPI_SANITIZE"
    cmake --build $build --parallel "$(nproc)"
else
    jobs/build.sh -DFTMPI_TESTS=ON
fi

step "tests"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
set +e
ctest --test-dir $build --output-on-failure --no-tests=error --parallel "$(nproc)" ${except[@]+"${except[@]}"} </dev/null 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
set -e
# What was left out, whole tests or parts of them, in their own words.
grep -ah '^skipped: ' $build/Testing/Temporary/LastTest.log || echo "nothing was skipped"
step "end"
grep -E '^[0-9]+% tests passed' "$log" || true
exit "$code"
