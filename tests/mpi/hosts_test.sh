#!/usr/bin/env bash
# Several hosts on one machine: network namespaces with a name, an address and a bridge between them, mpirun across them. The same bits
# as one rank alone; and a host that is cut off or frozen in the middle ends the job at its deadline, with what was finished kept.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
skip() {
    echo "skipped: several hosts: $*"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "only root may make network namespaces"
command -v ip >/dev/null || skip "ip (iproute2) is not installed"
case $open_mpi in 4) ;; *) skip "the launch agent here is written for Open MPI 4" ;; esac
tag=ftmpi$$
hosts=(a b c)
pids_of() { ip netns pids "$tag$1" 2>/dev/null; }
tidy() {
    local n
    for n in "${hosts[@]}" s; do
        # shellcheck disable=SC2046
        kill -9 $(pids_of $n) 2>/dev/null
        ip netns del "$tag$n" 2>/dev/null
    done
    rm -rf "$work"
}
trap tidy EXIT
ip netns add ${tag}s 2>ip.err || skip "network namespaces are not allowed: $(head -n 1 ip.err)"
{
    ip -n ${tag}s link add bridge0 type bridge && ip -n ${tag}s link set bridge0 up
    echo "127.0.0.1 localhost" >hosts
    for i in "${!hosts[@]}"; do
        n=${hosts[i]}
        ip netns add $tag$n && ip -n $tag$n link add eth0 type veth peer name to_$n netns ${tag}s &&
            ip -n ${tag}s link set to_$n master bridge0 up && ip -n $tag$n addr add 10.87.0.$((i + 1))/24 dev eth0 &&
            ip -n $tag$n link set eth0 up && ip -n $tag$n link set lo up || exit
        echo "10.87.0.$((i + 1)) host$n" >>hosts
    done
} 2>ip.err || skip "a bridge between namespaces is not allowed: $(head -n 1 ip.err)"

# on HOST COMMAND...: what ssh would do. A host has its own name, so that Open MPI takes no shared memory between two of them.
cat >on <<X
#!/bin/bash
host=\$1
shift
exec ip netns exec $tag\${host#host} unshare --uts --mount bash -c 'mount --bind $work/hosts /etc/hosts && hostname "\$0" && exec bash -c "\$*"' "\$host" "\$@"
X
chmod +x on
same "$(./on hostb hostname 2>&1)" hostb "name of a host" || true
[ "$failed" = 0 ] || skip "a host of its own name cannot be made: $(./on hostb hostname 2>&1 | head -n 1)"
export OMPI_MCA_odls_base_sigkill_timeout=0
# across HOSTS ARGS...: one rank on each of the hosts, mpirun on the first.
across() {
    local list=$1 np
    shift
    np=$(tr ',' '\n' <<<"$list" | awk -F: '{n += NF > 1 ? $2 : 1} END {print n}')
    ./on hosta "exec timeout -k 1 90 mpirun --allow-run-as-root --mca plm_rsh_agent $work/on -np $np --host $list $ftmpi --model $model $*"
}

# --- the right bits --------------------------------------------------------------------------------------------------------
printf 'The capital of France is\n1, 2, 3,\ndef fibonacci(n):\n' >prompts.txt
expect_code 0 "$ftmpi" --model "$model" --prompts prompts.txt --output one.h5
expect_code 0 across hosta,hostb --prompts "$work/prompts.txt" --output "$work/two.h5" --timeout 30
says "transport: mpi"
expect_code 0 "$ftmpi" verify one.h5 two.h5
says "equal: 3 requests"
expect_code 0 across hosta,hostb,hostc --prompts "$work/prompts.txt" --output "$work/three.h5" --timeout 30 --shares 5,2,1 --batch 3
expect_code 0 "$ftmpi" verify one.h5 three.h5
# Once by TCP alone, whatever else Open MPI would find; and two ranks on one host beside one on another.
OMPI_MCA_btl=tcp,self expect_code 0 across hosta:2,hostb --prompts "$work/prompts.txt" --output "$work/tcp.h5" --timeout 30
expect_code 0 "$ftmpi" verify one.h5 tcp.h5
# The ranks were where they should be.
if command -v h5dump >/dev/null; then
    h5dump -d /ranks/host three.h5 >dumped 2>/dev/null
    for n in "${hosts[@]}"; do grep -q "host$n" dumped && ok || bad "no rank on host$n"; done
else
    skipped "the hosts that the result names (h5dump is not installed)"
fi

# --- hardly any shared memory, and what killed ranks leave there: a /dev/shm of this test's own ------------------------------
shared() { # shared OPTIONS COMMAND...
    unshare --mount bash -c 'mount -t tmpfs -o "$0" tmpfs /dev/shm && exec "$@"' "$@"
}
for size in size=1m size=64k size=64k,ro; do
    expect_code 0 shared $size "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output small.h5 --overwrite
    expect_code 0 "$ftmpi" verify one.h5 small.h5
done
cat >killed.sh <<'X'
for rank in 0 1 0 1; do
    FTMPI_FAULT=$rank:decode#5:kill "$@" >/dev/null 2>&1 && echo "nothing was killed"
    rm -f killed.h5*
done
ls -A /dev/shm
X
same "$(shared size=64m bash killed.sh "$mpirun" -np 2 "$ftmpi" --model "$model" --prompts prompts.txt --output killed.h5 2>&1)" "" "left in /dev/shm by killed ranks"

# --- a host is lost in the middle of the second prompt ----------------------------------------------------------------------
printf '{"prompt":"The capital of France is","max_tokens":8}\n{"prompt":"1, 2, 3,","max_tokens":3500}\n' >long.jsonl
expect_code 0 "$ftmpi" --model "$model" --prompts long.jsonl --output long.h5 --ignore-eos
deadline=4
processes() { local n; for n in "$@"; do for pid in $(pids_of "$n"); do cat "/proc/$pid/comm"; done; done 2>/dev/null | sort | uniq | tr '\n' ' '; }
# lost LIST COMMAND...: runs on the hosts of LIST; when the first prompt is done, COMMAND makes one of them unreachable.
lost() {
    local list=$1 begin job i
    shift
    rm -f lost.h5* lost.out
    across "$list" --prompts "$work/long.jsonl" --output "$work/lost.h5" --ignore-eos --json --timeout $deadline >lost.out 2>err </dev/null &
    job=$!
    # By its journal as well: the launcher may bring the output late.
    for ((i = 0; i < 1200; i++)); do
        grep -q '"index":0' lost.out 2>/dev/null && break
        grep -qa 'The capital of France is' lost.h5.journal 2>/dev/null && break
        sleep 0.05
    done
    if [ $i = 1200 ]; then bad "the job did not start"; fi
    "$@"
    begin=$(date +%s%N)
    wait $job
    code=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    cp err lost.err
    if [ $code != 0 ] && [ $code != 124 ]; then ok; else bad "exit code $code: $*"; fi
    # Not before the deadline, and before its own end of 90 s.
    if [ $took -ge 2000 ] && [ $took -lt 80000 ]; then ok; else bad "the job ended after $took ms: $*"; fi
    same "$(grep -c '^ftmpi: error' err)" 1 "messages: $*"
    [ "$(grep -c '^ftmpi: error' err)" = 1 ] || cat err
    grep -qE "^ftmpi: error on rank 0 \(hosta\): '[a-z ]+' was not finished within $deadline s: waited for rank 1 \(hostb\)" err && ok ||
        { bad "the collective and the host are not named: $*"; tail -n 12 err; }
}
left_on() { # left_on SECONDS HOSTS...
    local i
    for ((i = 0; i < $1 * 10; i++)); do [ -z "$(processes "${@:2}")" ] && { ok; return; }; sleep 0.1; done
    bad "left running on ${*:2}: $(processes "${@:2}")"
}
kept() {
    absent lost.h5
    absent lost.h5.part
    expect_code 0 "$ftmpi" recover lost.h5
    says "1 request recovered"
    expect_code 0 "$ftmpi" --model "$model" --prompts long.jsonl --output lost.h5 --ignore-eos --resume
    says "resumed: 1 of 2"
    expect_code 0 "$ftmpi" verify long.h5 lost.h5
}
cut_off() { ip -n ${tag}b link set eth0 down; }
frozen() {
    # shellcheck disable=SC2046
    kill -STOP $(pids_of b)
}
lost hosta,hostb cut_off
left_on 12 a b  # what runs on the host that is cut off ends by itself, too
kept
ip -n ${tag}b link set eth0 up
lost hosta,hostb,hostc frozen
left_on 12 a c
kept
# The frozen host comes back, and finds that its job is over.
# shellcheck disable=SC2046
kill -CONT $(pids_of b) 2>/dev/null
left_on 20 b
finish
