#!/usr/bin/env bash
# The transports of GPU memory on the GPUs of this machine: transport_check.sh BUILD_DIR. One rank a GPU, at most four; with a
# single GPU two ranks share it.
. "$(dirname "$0")/../support/check.sh"
check=$build/tests/gpu/transport_check
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "skipped: no GPU here"; exit 77; }
ranks=$((gpus < 2 ? 2 : gpus > 4 ? 4 : gpus))

expect_code 0 timeout -k 2 120 "$mpirun" -np 1 "$check"
expect_code 0 timeout -k 2 240 "$mpirun" -np "$ranks" "$check"
cat "$work/out"
grep -h FAILED "$work/err"
says ' 0 failed'

transports='pinned mpi'
[ "$gpus" = 1 ] || transports='peer pinned nccl mpi'
for transport in $transports; do
    begin=$SECONDS
    expect_code 6 timeout -k 2 60 "$mpirun" -np "$ranks" "$check" hang "$transport"
    says "'hang check' was not finished within 4 s"
    [ $((SECONDS - begin)) -le 30 ] && ok || bad "$transport: a rank that stops is noticed after $((SECONDS - begin)) s"
    echo "$transport: $(grep -h '^ftmpi: error' "$work/err" | head -n 1)"
done
finish
