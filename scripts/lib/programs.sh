# `scripts/bench programs [NODE.toml]`: the processor time of public programs on this machine and in a guest with a sampled window.

# Public programs, as Debian packages. The guest has the same ones (tests/bench/programs/study.toml).
PROGRAM_PACKAGES=(bc bzip2 gawk mawk perl-base python3-minimal sqlite3 stress-ng xz-utils zstd)
# Rounds on this machine, half before the guest and half behind.
ROUNDS=8

# native FIRST LAST FOLDER : runs the programs in rounds. The C library takes no code that guests do not announce.
native() {
    local round
    for round in $(seq "$1" "$2"); do
        echo "nodescope: round $round of $ROUNDS on this machine" >&2
        GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ \
            OPENSSL_ia32cap=:~0x20000000 tests/bench/programs/programs > "$3/native.$round"
    done
}

programs() {
    local node=${1:-} nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope
    install_missing "${PROGRAM_PACKAGES[@]}"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cp tests/bench/programs/* "$folder"
    if [ -n "$node" ]; then
        cp "$node" "$folder/node.toml"
    else
        "$nodescope" node measure > "$folder/node.toml"
    fi
    native 1 $((ROUNDS / 2)) "$folder"
    "$nodescope" run "$folder/study.toml" --results "$folder/results" --force > "$folder/report.txt"
    native $((ROUNDS / 2 + 1)) "$ROUNDS" "$folder"
    grep -E '^(Sampled|Check of the clock|interval|the clock)|instructions in' "$folder/report.txt" || true
    awk -f scripts/lib/programs.awk "$folder"/native.* "$folder/results/files/times"
}
