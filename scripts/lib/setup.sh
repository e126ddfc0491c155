# The other scripts source this file. It installs missing packages on Debian 12, as root or with sudo.

# as_root COMMAND...
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "nodescope: '$*' needs root: run as root, or install sudo" >&2
        return 1
    fi
}

# install_missing PACKAGE... : installs the packages that are not installed yet
install_missing() {
    local package missing=()
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    command -v apt-get >/dev/null || {
        echo "nodescope: these Debian packages are needed, and there is no apt-get to install them: ${missing[*]}" >&2
        return 1
    }
    echo "nodescope: installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# need_rust: provides a cargo that is new enough for Cargo.toml's rust-version, else Debian's
need_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
    if [ -n "$have" ] && [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ]; then
        return
    fi
    # Debian 12 keeps a current toolchain for its browsers under this name.
    install_missing cargo-web rustc-web
}

# install_mpi_abi: MPICH 5 from PyPI (13 MB), whose library libmpi_abi.so.1 has the standard ABI of MPI 5. Debian 12 has no such library.
# Where the installation fails, tests that need the library are skipped (tests/needs/src/lib.rs, mpi_abi).
install_mpi_abi() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/nodescope/mpi-abi
    [ ! -x "$folder/bin/mpicc_abi" ] || return 0
    echo "nodescope: installing mpich of PyPI into $folder"
    python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --only-binary :all: "mpich==5.0.2" || rm -rf "$folder"
}

# Packages of the host that building needs (some crates build C).
BUILD_PACKAGES=(gcc libc6-dev libzmq3-dev)
# Packages that building a guest image needs.
IMAGE_TOOLS=(mmdebstrap e2fsprogs gcc libc6-dev libopenmpi-dev libmpich-dev)
# Further packages that building a guest image needs where the user is not root.
IMAGE_USER_TOOLS=(fakeroot uidmap)
IMAGE_PACKAGES=("${IMAGE_TOOLS[@]}")
if [ "$(id -u)" -ne 0 ]; then
    IMAGE_PACKAGES+=("${IMAGE_USER_TOOLS[@]}")
fi
# Packages that making packages of nodescope needs.
PACKAGING_PACKAGES=(binutils dpkg-dev git)
# Packages that the model of a core needs (node.core).
CORE_PACKAGES=(llvm-22)
# Packages that the tests compare with, or whose tools they run.
TEST_PACKAGES=(valgrind hpcc acpica-tools openmpi-bin mpich gfortran g++ clang libomp-dev binutils python3-mpi4py python3-venv iproute2 otf2-tools libsimgrid-dev
    linux-perf chromium fonts-dejavu-core slurmctld slurmd slurm-client man-db zsh fish "${PACKAGING_PACKAGES[@]}" "${CORE_PACKAGES[@]}")
# Packages that an emulated host with full KVM needs (scripts/kvm-host).
KVM_HOST_PACKAGES=(qemu-system-x86 busybox-static cpio)
# Packages that the benchmarks compare with.
BENCH_PACKAGES=(qemu-system-x86 qemu-user valgrind hpcc libsimgrid-dev linux-perf "${CORE_PACKAGES[@]}")
