#!/bin/bash
# Results seen from outside: read by h5dump and h5py, compared and recovered by the program, written where locks do not work,
# where the disk is full or read-only, and by a process that is killed.
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
sample=$build/tests/results_sample
ftmpi=$build/ftmpi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

check() {  # check WHAT COMMAND...: the command must succeed
    local what=$1
    shift
    if "$@"; then echo "ok: $what"; else
        echo "FAILED: $what"
        failures=$((failures + 1))
    fi
}
# gives CODE PATTERN COMMAND...: exit code, and a pattern in its output (left in $work/said)
gives() {
    local code=$1 pattern=$2
    shift 2
    "$@" >"$work/said" 2>&1
    local got=$?
    [ $got = "$code" ] && grep -q -- "$pattern" "$work/said" && return 0
    echo "exit $got, wanted $code with '$pattern':"
    head -5 "$work/said"
    return 1
}
only() { [ "$(ls | grep '^out' | tr '\n' ' ')" = "${1:+$1 }" ] || { ls | grep '^out'; false; }; }

check "write" gives 0 started "$sample" out.h5 3
check "odd text" gives 0 started "$sample" odd.h5 4 refuse odd
if command -v h5dump >/dev/null; then
    echo "-- h5dump"
    check "h5dump reads all of it" gives 0 schema_version h5dump out.h5
    dump_has() { h5dump "$@" 2>&1 | tr -d '\n' | tr -s ' ' >said && grep -q -- "$pattern" said || { head -c 600 said; false; }; }
    pattern='(0): 10, 11, 12, 13' check "output ids" dump_has -d /requests/1/output_ids out.h5
    pattern='H5T_STD_I32LE' check "ids are int32" dump_has -H -d /requests/1/prompt_ids out.h5
    pattern='H5T_STD_U8LE.*( 4, 32 )' check "hashes are 32 bytes a step" dump_has -d /requests/1/step_logits_sha256 out.h5
    pattern='DATASPACE SIMPLE { ( 3, 2 )' check "gather seconds are [ranks][names]" dump_has -d /requests/1/gather_seconds out.h5
    pattern='(0): "s"' check "seconds have a unit" dump_has -a /requests/1/step_seconds/unit out.h5
    pattern='(0): "node0", "node1", "node2"' check "ranks: strings" dump_has -d /ranks/host out.h5
    pattern='(0): "570.10", "570.10", "570.10"' check "ranks: a version stays text" dump_has -d /ranks/driver out.h5
    pattern='H5T_STD_I64LE.*(0): 1000, 1001, 1002' check "ranks: integers" dump_has -d /ranks/free_bytes out.h5
    pattern='H5T_IEEE_F64LE.*(0): 0.5, 1.5, 2.5' check "ranks: numbers" dump_has -d /ranks/bandwidth_gb_per_s out.h5
    pattern='( 2, 3, 2 )' check "plan by layer and rank" dump_has -d /plan/mixer out.h5
    pattern='(0): "token/s"' check "summary unit" dump_has -a /summary/decode_tokens_per_second/unit out.h5
    check "h5dump reads odd text" gives 0 job_text_bytes h5dump odd.h5
else
    echo "skipped: reading results with h5dump (hdf5-tools is not installed)"
fi

echo "-- h5py"
if python3 -c 'import h5py' 2>/dev/null; then
    check "h5py reads all of it" python3 - <<'PY'
import h5py, numpy as np
texts = [b"p" * 70000, b"a\0b", b"\xff", b"cut \xf0\x9f\x98"]
for name in ("out.h5", "odd.h5"):
    with h5py.File(name, "r") as f:
        def visit(path, item):
            for key, value in item.attrs.items():
                assert isinstance(value, (str, np.integer)), (path, key, type(value))
            if isinstance(item, h5py.Dataset):
                item[()]
        f.visititems(visit)
        for key, value in f.attrs.items():
            assert isinstance(value, (str, np.integer)), (key, type(value))
        assert list(f["requests/1/output_ids"][:4]) == [10, 11, 12, 13]
        assert f["requests/1/prompt_ids"].dtype == np.int32
        assert f["requests/1/step_logits_sha256"].shape == (4, 32) and f["requests/1/step_logits_sha256"].dtype == np.uint8
        assert f["requests/0/prefill_seconds"][()] == 0.25
        assert list(f["ranks/host"].asstr()[:]) == ["node0", "node1", "node2"]
        assert "share" in f["plan/text"].asstr()[()]
        assert f["summary/load_seconds"].attrs["unit"] == "s"
        if name == "odd.h5":
            assert len(f["requests/0/step_seconds"]) == 9000
            assert f["requests/1/logits"].shape == (4, 5) and f["requests/1/logits"][1, 1] == 3.0
            for i, text in enumerate(texts):
                g = f[f"requests/{i}"]
                assert g["prompt_bytes"][()].tobytes() == text and g["text_bytes"][()].tobytes() == text
                assert ("prompt" in g.attrs) == (i > 0) and ("prompt_replaced" in g.attrs) == (i > 0)
            assert f["requests/2"].attrs["prompt"] == "\ufffd"
            assert f["requests/3"].attrs["text"] == "cut \ufffd"
            assert f.attrs["model"] == "/models/\ufffd/tiny" and f["model_bytes"][()].tobytes() == b"/models/\xff/tiny"
            assert "job_text" not in f.attrs and len(f["job_text_bytes"]) == 70000
PY
else
    echo "skipped: reading results with h5py (it is not installed)"
fi

echo "-- ncdump"
if command -v ncdump >/dev/null; then
    # Other tools read what netCDF can: no type may stop it.
    check "ncdump shows all of it" gives 0 'step_logits_sha256 =' ncdump out.h5
    check "ncdump shows odd text" gives 0 'job_text_bytes' ncdump odd.h5
else
    echo "skipped: reading results with ncdump (netcdf-bin is not installed)"
fi

echo "-- files that another program has written to"
touched() {  # touched FILE: its data are compared, with a note
    check "$1 is compared" gives 0 "note: $1 lacks the checksum" "$ftmpi" verify $1 out.h5
    check "$1 is equal" grep -q '^equal: 3 requests, 12 tokens' said
    check "$1 is not gone on from" gives 3 'another program has written to it' "$sample" $1 3 resume
}
if command -v h5repack >/dev/null; then
    check "h5repack" h5repack out.h5 repacked.h5
    touched repacked.h5
else
    echo "skipped: a file from h5repack (hdf5-tools is not installed)"
fi
if python3 -c 'import h5py' 2>/dev/null; then
    cp out.h5 opened.h5
    cp out.h5 noted.h5
    check "opened by h5py" python3 -c 'import h5py; h5py.File("opened.h5", "r+").close()'
    touched opened.h5
    check "noted by h5py" python3 - <<'PY'
import h5py, numpy as np
with h5py.File("noted.h5", "r+") as f:
    f.attrs["remark"] = "mine"
    f.attrs["bytes"] = np.bytes_(b"mine")
    f["requests/1"].attrs["score"] = 0.5
PY
    touched noted.h5
else
    echo "skipped: files changed by h5py (it is not installed)"
fi

echo "-- verify and recover"
check "an equal file" gives 0 'equal: 4 requests, 9012 tokens, logits hash' "$ftmpi" verify odd.h5 odd.h5
check "another file" gives 8 'different: request 0' "$ftmpi" verify out.h5 odd.h5
check "a truncated file" eval 'head -c 96 out.h5 >cut.h5; gives 3 "cut.h5.*cannot be opened as an HDF5 file" "$ftmpi" verify out.h5 cut.h5'
check "no file" gives 3 'does not exist' "$ftmpi" verify out.h5 none.h5
check "empty runs are not called equal" eval 'gives 0 started "$sample" zero.h5 0; gives 3 "nothing was compared" "$ftmpi" verify zero.h5 zero.h5'
check "an existing file is refused" gives 2 'exists.*not replaced' "$sample" out.h5 2
check "nothing left of the refusal" only out.h5
flock -x out.h5 sleep 60 &
holder=$!
for _ in $(seq 600); do flock -n out.h5 true || break; sleep 0.05; done
check "overwritten while another process holds its lock" gives 0 started "$sample" out.h5 2 overwrite
kill $holder 2>/dev/null
wait $holder 2>/dev/null
check "exactly the new requests" gives 0 'equal: 2 requests, 8 tokens' "$ftmpi" verify out.h5 out.h5
rm -f out.h5
"$sample" out.h5 5 refuse hang 2>hung &
hanging=$!
for _ in $(seq 600); do grep -q started hung && [ "$(stat -c %s out.h5.journal)" -gt 4000 ] && break; sleep 0.05; done
check "a second run is refused meanwhile" gives 1 'another process is writing' "$sample" out.h5 5
kill -9 $hanging
wait $hanging 2>/dev/null
check "after a kill there is only the journal" only out.h5.journal
printf 'torn' >>out.h5.journal
check "recover" gives 0 'out.h5: 5 requests recovered; .*at byte .*the last record is incomplete.*4 bytes' "$ftmpi" recover out.h5
check "the journal is gone" only out.h5
check "recovered is said" gives 0 'did not end' "$ftmpi" verify out.h5 out.h5
"$sample" out.h5 2 overwrite leave >/dev/null 2>&1
check "recover does not replace another run's result unasked" gives 2 'hint:.*--overwrite' "$ftmpi" recover out.h5
check "recover --overwrite does" gives 0 'out.h5: 2 requests recovered' "$ftmpi" recover out.h5 --overwrite
rm -f out.h5

echo "-- locks that do not work"
cat >shim.c <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int f, int o) { (void)f; (void)o; errno = FAIL_FLOCK; return -1; }
#ifdef FAIL_FCNTL
int fcntl(int f, int c, ...) {
    va_list v; va_start(v, c); void* a = va_arg(v, void*); va_end(v);
    if (c == F_OFD_SETLK) { errno = FAIL_FCNTL; return -1; }
    return syscall(SYS_fcntl, f, c, a);
}
int fcntl64(int f, int c, ...) {
    va_list v; va_start(v, c); void* a = va_arg(v, void*); va_end(v);
    return fcntl(f, c, a);
}
#endif
C
# AddressSanitizer, where it is in use, wants to be the first library otherwise.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
for errors in 37 524 11 37,37 38,524; do
    flock_error=${errors%,*}
    cc -shared -fPIC -DFAIL_FLOCK="$flock_error" $([ "$errors" != "$flock_error" ] && echo -DFAIL_FCNTL="${errors#*,}") -o shim.so shim.c || exit 1
    rm -f out.h5
    check "errno $errors: said at the start, written all the same" \
        gives 0 'warning.*HDF5_USE_FILE_LOCKING=FALSE' env LD_PRELOAD=./shim.so "$sample" out.h5 3
    check "errno $errors: read back" gives 0 'equal: 3 requests' env LD_PRELOAD=./shim.so "$ftmpi" verify out.h5 out.h5
    check "errno $errors: locks asked for are refused at the start" eval 'rm out.h5; gives 1 "hint.*HDF5_USE_FILE_LOCKING=FALSE" \
        env LD_PRELOAD=./shim.so HDF5_USE_FILE_LOCKING=TRUE "$sample" out.h5 3 && ! grep -q started said && only ""'
    # The program itself, which also must not load anything when it refuses. Open MPI holds memory to the end.
    program=(env LD_PRELOAD=./shim.so ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0")
    job=("$ftmpi" --model "$root/data/tiny-nvfp4" --prompt And --max-tokens 2 --output out.h5)
    check "errno $errors: the program says so in a note" gives 0 'note:.*HDF5_USE_FILE_LOCKING=FALSE' "${program[@]}" "${job[@]}"
    check "errno $errors: its result is whole" eval 'only out.h5 && gives 0 "equal: 1 request" "$ftmpi" verify out.h5 out.h5'
    check "errno $errors: the program refuses locks that were asked for" eval 'rm out.h5; gives 1 "hint.*HDF5_USE_FILE_LOCKING=FALSE" \
        "${program[@]}" HDF5_USE_FILE_LOCKING=TRUE "${job[@]}" && ! grep -q "^loaded" said && only ""'
done

echo "-- full and read-only disks"
export sample
cat >mounted.sh <<'M'
mkdir -p small && mount -t tmpfs -o size=64k tmpfs small || exit 77
cd small
"$sample" out.h5 400 >../full.append 2>&1; echo "append $?"
[ -e out.h5 ] && echo "out.h5 exists"
rm -f *
"$sample" out.h5 60 refuse leave 2>/dev/null; echo "leave $?"
"$sample" out.h5 60 resume >../full.finish 2>&1; echo "finish $?"
ls
rm -f out.h5.journal; head -c 100000 /dev/zero >fill 2>/dev/null
"$sample" out.h5 1 >../full.start 2>&1; echo "start $?"
mount -o remount,ro small . 2>/dev/null || mount -o remount,ro "$PWD"
"$sample" other.h5 1 >../readonly 2>&1; echo "readonly $?"
ls
M
if unshare -m bash mounted.sh >mounted 2>&1; then
    check "exit codes, no signal, nothing under the final name" \
        diff - <(grep -v '^[mt].*:' mounted) <<<$'append 1\nleave 0\nfinish 1\nout.h5.journal\nstart 1\nreadonly 1\nfill'
    for said in full.append full.finish full.start; do check "$said says why" grep -q 'error:.*No space left on device' $said; done
    check "full.finish says how to go on" grep -q 'hint:.*ftmpi recover' full.finish
    check "readonly says why" grep -q 'error:.*Read-only file system' readonly
    grep -h error: full.append full.finish full.start readonly
else
    echo "skipped: full and read-only disks (a small disk cannot be mounted here: $(head -n 1 mounted))"
fi

[ $failures = 0 ] && echo "all passed" || { echo "$failures failed"; exit 1; }
