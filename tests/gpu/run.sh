#!/usr/bin/env bash
# The proof on GPUs: the same bits as the CPU on any number of ranks, cut and transport. Uses whatever GPUs this machine has
# (none: says so, exit code 77), prints one line a check and exits with 1 when any check failed or could not be made.
#
#   tests/gpu/run.sh                    the small models of data/, under 8 minutes
#   tests/gpu/run.sh --only P[,P...]    some phases of it: programs hashes types choice shared kv batch fast memory faults
#                                       bench ptx sanitizer
#   tests/gpu/run.sh --full S[,S...]    steps at full size, each under 9 minutes; they share a checkpoint in FTMPI_FULL_DIR
#                                       (/tmp/ftmpi-full): checkpoint hash long cpu layers errors load decode prefill
#                                       memory policies far checkpoint-fp8 fp8
# FTMPI_BUILD=DIR uses what is built there (DIR/ftmpi, DIR/tests/gpu/*_check) and builds nothing; else build-gpu/ of this
# checkout is configured for the GPUs here and built. FTMPI_MPIRUN is what starts ranks (jobs/mpirun.sh).
# The phase ptx takes further builds: FTMPI_BUILD_86 and FTMPI_BUILD_89, which hold PTX alone (-DFTMPI_CUDA_ARCHS=86-virtual, 89-virtual)
# and run what older GPUs run; FTMPI_BUILD_NONE, which holds no code for the GPU here (100-real, say) and must say so.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/gpu
. "$here/table.sh"
. "$here/small_phases.sh"
. "$here/fault_phases.sh"
. "$here/full_steps.sh"

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
kind=small wanted=
while [ $# -gt 0 ]; do
    case $1 in
        --only) kind=small ;;
        --full) kind=full ;;
        *) usage ;;
    esac
    [ $# -gt 1 ] || usage
    wanted=${2//,/ }
    shift 2
done
small_order="programs hashes types choice shared kv batch fast memory faults bench ptx sanitizer"
full_order="checkpoint hash long cpu layers errors load decode prefill memory policies far checkpoint-fp8 fp8"
[ "$kind" = small ] && order=$small_order || order=$full_order
if [ -z "$wanted" ]; then [ "$kind" = small ] && wanted=$order || usage; fi
for one in $wanted; do case " $order " in *" $one "*) ;; *) echo "run.sh: unknown phase or step: $one" >&2; usage ;; esac; done

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$gpus" = 0 ]; then
    echo "skipped: no GPU here (nvidia-smi -L lists none)"
    exit 77
fi
mpirun=${FTMPI_MPIRUN:-$root/jobs/mpirun.sh}
build=${FTMPI_BUILD:-$root/build-gpu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvidia-smi --query-gpu=index,name,compute_cap,memory.total,driver_version --format=csv,noheader
begin_table

if [ -z "${FTMPI_BUILD:-}" ]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | sed 's/$/-real/' | paste -sd ';')
    timed 60 cmake -S "$root" -B "$build" -DFTMPI_CUDA=ON -DFTMPI_CUDA_ARCHS="$archs"
    row build "configured for $archs" "" || { finish_table; exit 1; }
    timed 900 cmake --build "$build" --parallel "$(nproc)" --target ftmpi linear_check mixers_check transport_check fused_check fast_check layer_dump
    row build "built" "" || { finish_table; exit 1; }
fi
# From here on every command's limit is also what is left of this, so that no hang can take the time of what comes after it.
[ "$kind" = small ] && give_until=$((SECONDS + 475)) || give_until=$((SECONDS + 530))
ftmpi=$build/ftmpi
if [ ! -x "$ftmpi" ]; then
    failed_row build "the program" "$ftmpi is missing"
    finish_table
    exit 1
fi

for one in $order; do
    case " $wanted " in *" $one "*) ;; *) continue ;; esac
    "${kind}_${one//-/_}"
done
finish_table
