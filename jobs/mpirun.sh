#!/usr/bin/env bash
# mpirun with what this machine asks for; all arguments are passed on:  jobs/mpirun.sh -np 2 build/ftmpi --model ...
# Open MPI spells "more ranks than cores" differently from version 5 on, refuses root unasked, and binds two ranks to one
# core each, which would leave the other cores idle. On one host version 5 is kept to shared memory: its TCP transport, which no
# rank would use there, complains of interfaces that do not reach each other. Hosts, a batch system or transports that are named
# leave the choice to Open MPI.
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
case $version in
    *"Open MPI) "[1-4].*) ;;
    *"Open MPI)"*)
        case " $* ${OMPI_MCA_btl+btl}${SLURM_JOB_ID+ --host}${PBS_JOBID+ --host}${LSB_JOBID+ --host} " in
            *" --host"* | *" -host "* | *" -H "* | *" --machinefile "* | *" -machinefile "* | *" -hostfile "* | *btl*) ;;
            *) options+=(--mca btl self,sm) ;;
        esac ;;
esac
if [ "${1-}" = --print ]; then
    shift
    printf 'mpirun%s\n' "${options[*]:+ ${options[*]}}${*:+ $*}"
    exit 0
fi
exec mpirun "${options[@]}" "$@"
