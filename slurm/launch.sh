#!/usr/bin/env bash
# launch.sh PROGRAM ARG...: starts the ranks of this Slurm job, keeps the program's exit code, and turns a SIGTERM to the
# batch script (Slurm's warning before the time limit) into the stop signal of the ranks, which then save what is done.
# FTMPI_LAUNCHER=srun|mpirun overrides the choice, for an MPI library that was not built for this Slurm's PMIx.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ranks=${SLURM_NTASKS:?slurm/launch.sh runs inside a Slurm job}
launcher=${FTMPI_LAUNCHER:-}
if [ -z "$launcher" ]; then
    if srun --mpi=list 2>&1 | grep -qw pmix; then launcher=srun; else launcher=mpirun; fi
fi
case $launcher in
    srun) start=(srun --mpi=pmix --ntasks="$ranks") ;;
    mpirun) start=("$here/../jobs/mpirun.sh" -np "$ranks") ;;
    *) echo "slurm/launch.sh: FTMPI_LAUNCHER is '$launcher', not srun or mpirun" >&2; exit 2 ;;
esac
# sbatch --cpus-per-task reaches srun only by this name since Slurm 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
echo "slurm: job $SLURM_JOB_ID on ${SLURM_JOB_NODELIST:-?}, $ranks ranks by $launcher" >&2

"${start[@]}" "$@" &
child=$!
# SIGUSR1 and not SIGTERM: srun and mpirun pass it on and keep waiting, where SIGTERM makes them kill the ranks.
trap 'kill -USR1 "$child" 2>/dev/null' TERM USR1
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break  # else a signal ended the wait, not the program
done
exit "$code"
