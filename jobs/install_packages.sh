#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing; asks dpkg first and touches nothing when all are there.
#   jobs/install_packages.sh            what the program needs
#   jobs/install_packages.sh --tests    and what the tests need; of these, "optional" ones may be missing: their tests skip
set -eu
required=(
    g++:compiler cmake:build ninja-build:build pkg-config:build
    libopenmpi-dev:MPI openmpi-bin:mpirun libhdf5-dev:results
    libboost-program-options-dev:options libsimdjson-dev:JSON
    libpcre2-dev:tokenizer libutf8proc-dev:tokenizer libssl-dev:SHA-256
)
optional=()
if [ "${1-}" = --tests ]; then
    required+=(libboost-test-dev:tests procps:pgrep python3:chat)
    optional=(hdf5-tools:h5dump netcdf-bin:ncdump slurm-wlm:Slurm munge:Slurm clang:fuzzing libclang-rt-dev:fuzzing clang-format:format
              python3-jinja2:chat)
elif [ $# -gt 0 ]; then
    echo "usage: jobs/install_packages.sh [--tests]" >&2
    exit 2
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "packages: not a Debian system, nothing is installed; needed are: ${required[*]%%:*}"
    exit 0
fi
missing() {  # missing PACKAGE:REASON... -> the ones that are not installed
    local entry
    for entry in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "${entry%%:*}" 2>/dev/null || true)" = installed ] || echo "$entry"
    done
}
mapfile -t need < <(missing "${required[@]}")
mapfile -t want < <(missing ${optional[@]+"${optional[@]}"})
if [ ${#need[@]} = 0 ] && [ ${#want[@]} = 0 ]; then
    echo "packages: all $((${#required[@]} + ${#optional[@]})) are installed"
    exit 0
fi
echo "packages: missing ${need[*]-} ${want[*]-}"

as_root=()
if [ "$(id -u)" != 0 ]; then
    # Without a terminal sudo could only wait for a password that nobody types.
    if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=(sudo)
    elif [ ${#need[@]} = 0 ]; then
        echo "packages: neither root nor sudo, the optional ones stay missing"
        exit 0
    else
        echo "packages: neither root nor sudo. Ask an administrator for: apt-get install ${need[*]%%:*} ${want[*]%%:*}" >&2
        exit 1
    fi
fi
apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null; }
apt update || echo "packages: apt-get update failed, going on with the package lists that are here"
if [ ${#need[@]} -gt 0 ]; then
    apt install -y --no-install-recommends "${need[@]%%:*}" >/dev/null ||
        { echo "packages: apt-get could not install: ${need[*]%%:*}" >&2; exit 1; }
fi
for entry in ${want[@]+"${want[@]}"}; do
    apt install -y --no-install-recommends "${entry%%:*}" >/dev/null || echo "packages: optional ${entry%%:*} could not be installed"
done
echo "packages: installed"
