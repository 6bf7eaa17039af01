#!/usr/bin/env bash
# Every source of the program is valid for clang too: compiled without making code, with the options of this build. Its warnings count
# where the version is one that was looked at; a later one may have found new ones.
. "$(dirname "$0")/../support/check.sh"
clang=${FTMPI_CLANG:-clang++}
command -v "$clang" >/dev/null || { echo "skipped: this test needs clang++"; exit 77; }
version=$("$clang" -dumpversion)
strict=
if [ "${version%%.*}" -le 19 ]; then strict="-Werror -Wno-error=deprecated-declarations"; fi  # libstdc++ 12 deprecates what it uses itself

# The commands of the build with the other compiler: after the JSON's own quotes are gone, up to the output's name.
sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$build/compile_commands.json" | sed 's/\\\(.\)/\1/g' | grep -E ' -c [^ ]*/(src|mpi)/[^ ]*\.cpp$' |
    sed -E "s#^([^ ]*ccache )?[^ ]*(c\+\+|g\+\+)[^ ]* #$clang -fsyntax-only $strict #; s# -o [^ ]* -c # #; s# -fsanitize=[^ ]*##g; s# -fno-sanitize[^ ]*##g" |
    sort -u >"$work/commands"
same "$(grep -cv "^$clang -fsyntax-only" "$work/commands")" 0 "commands of another form"
[ "$(wc -l <"$work/commands")" -gt 50 ] && ok || bad "only $(wc -l <"$work/commands") commands in compile_commands.json"
xargs -P "$(nproc)" -d '\n' -I{} bash -c '{}' <"$work/commands" >"$work/log" 2>&1 && ok || { bad "$clang $version refuses a source"; head -n 40 "$work/log"; }
echo "$(wc -l <"$work/commands") sources, $clang $version, $(grep -c warning: "$work/log") warnings"
# That a source is refused is noticed: the same command for one with an error, and for one with a warning.
one=$(grep -m 1 '/src/verify\.cpp$' "$work/commands")
for bad in 'int f() { return missing; }' 'static int unused() { return 1; }'; do
    [ -n "$strict" ] || [ "$bad" != "${bad#int}" ] || continue
    echo "$bad" >"$work/bad.cpp"
    if bash -c "${one% *} $work/bad.cpp" >/dev/null 2>&1; then bad "not refused: $bad"; else ok; fi
done
finish
