#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with clang, AddressSanitizer and UBSan, and runs each over the kept corpus and beyond it.
# FTMPI_FUZZ_SECONDS: how long each runs (40 in CI, else 10). FTMPI_FUZZ_TARGETS: only these. FTMPI_FUZZ_CORPUS: a folder that
# keeps what a run finds, one folder a target in it. A finding ends the test, with the input in base64. The inputs that a target
# begins with are in corpus/TARGET.tar.gz; add_inputs.sh adds to them.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(mkdir -p "${1:?build directory}" && cd "$1" && pwd)/fuzz
seconds=${FTMPI_FUZZ_SECONDS:-$([ -n "${CI:-}" ] && echo 40 || echo 10)}
targets=${FTMPI_FUZZ_TARGETS:-safetensors index config tokenizer_file tokenizer_text job_file prompts journal}
skip() { echo "skipped: $1"; exit 77; }

command -v clang++ >/dev/null || skip "the fuzz targets need clang++"
# Files of the targets are small and many: memory holds them where it can.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=64:allocator_may_return_null=0
export UBSAN_OPTIONS=print_stacktrace=1
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$work/probe.cpp"
clang++ -fsanitize=fuzzer,address,undefined "$work/probe.cpp" -o "$work/probe" 2>/dev/null ||
    skip "clang++ has no libFuzzer or sanitizers (package libclang-rt-dev)"
if ! "$work/probe" -runs=1 >/dev/null 2>&1; then
    export ASAN_OPTIONS=${ASAN_OPTIONS/detect_leaks=1/detect_leaks=0}
    "$work/probe" -runs=1 >/dev/null 2>&1 || skip "programs of libFuzzer do not run here"
    echo "skipped: leaks in the fuzz targets (no ptrace here)"
fi

cmake -S "$root" -B "$build" -G Ninja -DFTMPI_FUZZ=ON -DFTMPI_CUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
    -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O1 -g1" >"$work/build.log" 2>&1 &&
    ninja -C "$build" $(printf 'fuzz_%s ' $targets) >>"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log"; exit 1; }
echo "fuzz: built after $SECONDS s; each target runs for $seconds s"

# run_target NAME: one line of figures; when something is found, what it is and the input.
run_target() {
    local name=$1 kept=$work/$1/kept code
    local scratch=${FTMPI_FUZZ_CORPUS:+$FTMPI_FUZZ_CORPUS/$name}
    scratch=${scratch:-$work/$name/corpus}
    mkdir -p "$kept" "$scratch"
    tar -xzf "$root/tests/fuzz/corpus/$name.tar.gz" -C "$kept" || { echo "FAILED: $name has no inputs to begin with"; return 1; }
    local options=(-max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/$name/found-")
    local words=$root/tests/fuzz/$([ "$name" = job_file ] && echo job_file.dict || echo json.dict)
    case $name in tokenizer_text | journal) ;; *) options+=(-dict="$words") ;; esac
    TMPDIR=$work/$name "$build/tests/fuzz/fuzz_$name" "${options[@]}" "$scratch" "$kept" >"$work/$name/log" 2>&1
    code=$?
    local done_ cov
    done_=$(grep -a -o 'number_of_executed_units: *[0-9]*' "$work/$name/log" | grep -o '[0-9]*$')
    cov=$(grep -a -o ' cov: [0-9]*' "$work/$name/log" | tail -n 1 | grep -o '[0-9]*$')
    echo "fuzz: $name: ${done_:-0} executions, coverage ${cov:-0}, exit code $code"
    [ "$code" = 0 ] && [ "${done_:-0}" -gt 0 ] && return 0
    grep -a -e '^property broken' -A 1 -e ERROR: -e SUMMARY: -e 'runtime error' -e terminate "$work/$name/log" | head -n 12
    grep -a '^ *#[0-9]* .*ftmpi::' "$work/$name/log" | head -n 12 | cut -c 1-220
    local found
    for found in "$work/$name"/found-*; do
        [ -e "$found" ] && echo "FAILED: $name on this input ($(basename "$found"), base64; add_inputs.sh keeps it):" && base64 -w 0 "$found" && echo
    done
    return 1
}
export -f run_target
export root build work seconds
printf '%s\n' $targets | xargs -P "$(nproc)" -I{} bash -c 'run_target {}'
code=$?
echo "fuzz: $([ $code = 0 ] && echo nothing found || echo FAILED) after $SECONDS s"
[ $code = 0 ]
