#!/usr/bin/env bash
# Adds inputs to those that a fuzz target begins with: tests/fuzz/add_inputs.sh TARGET FILE_OR_FOLDER...
# They are kept in corpus/TARGET.tar.gz under names by their content, so that none is there twice.
set -eu
corpus=$(cd "$(dirname "${BASH_SOURCE[0]}")/corpus" && pwd)
archive=$corpus/${1:?target}.tar.gz
shift
[ $# -gt 0 ] || { echo "usage: tests/fuzz/add_inputs.sh TARGET FILE_OR_FOLDER..." >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -e "$archive" ]; then tar -xzf "$archive" -C "$work"; fi
before=$(find "$work" -type f | wc -l)
find "$@" -type f -print0 | while IFS= read -r -d '' file; do cp "$file" "$work/$(sha1sum <"$file" | cut -d' ' -f1)"; done
# The same inputs are the same archive, byte by byte.
(cd "$work" && find . -type f -printf '%f\n' | LC_ALL=C sort | tar --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 -cf - -T -) | gzip -9n >"$archive"
echo "$archive: $before inputs before, $(find "$work" -type f | wc -l) now"
