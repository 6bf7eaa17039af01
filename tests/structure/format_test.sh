#!/usr/bin/env bash
# Every C++ and CUDA file is as clang-format 14 writes it with the tree's .clang-format; other versions write some lines otherwise.
# The columns are counted by structure_test, with or without clang-format.
. "$(dirname "$0")/../support/check.sh"
clang_format=
for name in ${FTMPI_CLANG_FORMAT:-clang-format-14 clang-format}; do
    case $("$name" --version 2>/dev/null) in *"version 14."*) clang_format=$name && break ;; esac
done
[ -n "$clang_format" ] || {
    echo "skipped: the format needs clang-format 14, here is $(clang-format --version 2>/dev/null | grep -o 'version [0-9.]*' || echo none)"
    exit 77
}
cd "$root" || exit 1
find src mpi cuda tests -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' >"$work/files"
[ "$(wc -l <"$work/files")" -gt 200 ] && ok || bad "only $(wc -l <"$work/files") files"
xargs -d '\n' "$clang_format" --dry-run --Werror <"$work/files" 2>"$work/log" && ok || { bad "files of another format"; grep error: "$work/log" | head -n 20; }
# That another format is noticed.
mkdir "$work/other" && cp .clang-format "$work/other" && printf 'int  f( ){return 1;}\n' >"$work/other/a.cpp"
if "$clang_format" --dry-run --Werror "$work/other/a.cpp" 2>/dev/null; then bad "another format is not refused"; else ok; fi
finish
