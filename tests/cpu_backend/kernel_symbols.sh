#!/bin/bash
# Each source of CPU kernels is compiled for instructions the machine may lack, so nothing of it but its table's function may be
# visible to the linker: a shared inline function compiled there could be chosen for the whole program.
set -eu
build=$1
objects=$(find "$build" -path '*cpu_backend.dir*' -name 'kernels_*.o')
if [ -z "$objects" ]; then
    echo "kernel_symbols: no kernel objects below $build" >&2
    exit 1
fi
status=0
for object in $objects; do
    name=$(basename "$object" | sed 's/\.cpp\.o$//')
    # Sanitizers add symbols of their own runtime, with two leading underscores, and what cleans up while an exception passes.
    visible=$(nm --defined-only --extern-only --demangle "$object" | awk 'NF >= 3 { sub(/^[^ ]+ [^ ]+ /, ""); print }' |
        grep -v -e '^__' -e '^DW\.ref\.__gxx_personality_v0$' -e '^$' || true)
    if [ "$visible" != "ftmpi::cpu::$name()" ]; then
        echo "kernel_symbols: $object shows the linker more than its table:" >&2
        echo "$visible" >&2
        status=1
    fi
done
# The rest of the backend and its plain kernels use no register wider than every x86-64 has.
for object in $(find "$build" -path '*cpu_backend.dir*' -name '*.o' ! -name 'kernels_avx*'); do
    if objdump -d --no-show-raw-insn "$object" | grep -q -m1 -E '%[yz]mm[0-9]'; then
        echo "kernel_symbols: $object uses AVX registers" >&2
        status=1
    fi
done
[ "$status" = 0 ] && echo "kernel_symbols: $(echo "$objects" | wc -w) kernel sources keep their code to themselves"
exit $status
