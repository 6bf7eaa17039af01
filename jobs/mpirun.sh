#!/usr/bin/env bash
# mpirun with what this machine asks for; all arguments are passed on:  jobs/mpirun.sh -np 2 build/ftmpi --model ...
# Open MPI spells "more ranks than cores" differently from version 5 on, refuses root unasked, and binds two ranks to one
# core each, which would leave the other cores idle.
set -eu
version=$(mpirun --version 2>/dev/null | head -n 1) || version=
options=()
case $version in
    *"Open MPI) 1."* | *"Open MPI) 2."* | *"Open MPI) 3."* | *"Open MPI) 4."*)
        options=(--oversubscribe --bind-to none) ;;
    *"Open MPI)"*) options=(--map-by :OVERSUBSCRIBE --bind-to none) ;;
    "") echo "jobs/mpirun.sh: no mpirun found; install openmpi-bin" >&2; exit 1 ;;
esac
case $version in *"Open MPI)"*) [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root) ;; esac
if [ "${1-}" = --print ]; then
    shift
    printf 'mpirun%s\n' "${options[*]:+ ${options[*]}}${*:+ $*}"
    exit 0
fi
exec mpirun "${options[@]}" "$@"
