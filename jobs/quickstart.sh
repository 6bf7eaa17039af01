#!/usr/bin/env bash
# From a fresh Debian 12 or 13 or Ubuntu 24.04 to an answer: installs the missing packages, builds, and runs the small model of
# data/ on two ranks. Needs root or sudo only while packages are missing. Can be run again, from any folder.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo "== 1/3 packages"
jobs/install_packages.sh
echo "== 2/3 build"
jobs/build.sh -DFTMPI_TESTS=OFF
echo "== 3/3 run"
mkdir -p results
run=(-np 2 build/ftmpi --model data/tiny-nvfp4 --prompt "The capital of France is" --output results/quickstart.h5 --overwrite)
echo "\$ $(jobs/mpirun.sh --print) ${run[*]}" | sed 's/The capital of France is/"&"/'
jobs/mpirun.sh "${run[@]}"
echo "== done in $SECONDS s; next: build/ftmpi --help, or jobs/mpirun.sh -np 2 build/ftmpi --job jobs/five_prompts.ini"
