#!/usr/bin/env bash
# Installs what is missing, builds build/ with the tests, and runs them all. Can be run again, from any folder.
# FTMPI_CUDA=ON builds the CUDA backend too; without a GPU to look at, for one architecture only (CUDAARCHS, 86 by default).
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
step() { echo "== $1 (at $SECONDS s)"; }
step "packages"
jobs/install_packages.sh --tests

has_gpu=$(nvidia-smi -L 2>/dev/null | head -n 1 || true)
if [ -n "${CI:-}" ] || [ -z "$has_gpu" ]; then export FTMPI_CUDA=${FTMPI_CUDA:-OFF}; fi
if [ "${FTMPI_CUDA:-AUTO}" = ON ] && [ -z "$has_gpu" ]; then export CUDAARCHS=${CUDAARCHS:-86}; fi
step "build, CUDA ${FTMPI_CUDA:-AUTO}"
jobs/build.sh -DFTMPI_TESTS=ON

step "tests"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
set +e
ctest --test-dir build --output-on-failure --no-tests=error --parallel "$(nproc)" </dev/null 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
set -e
# ctest names the skipped tests but not why; their own words are in its log.
if grep -q 'Skipped' "$log"; then grep -h '^skipped: ' build/Testing/Temporary/LastTest.log || true; fi
step "end"
grep -E '^[0-9]+% tests passed' "$log" || true
exit "$code"
