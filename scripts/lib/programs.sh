# `scripts/bench programs [NODE.toml]`: the processor time of public programs on this machine and in a guest with a sampled window.
# `scripts/bench applications [NODE.toml]`: the times that applications give themselves, here and in a guest whose job is sampled.

# Debian packages that the guests have, too (tests/bench/{programs,applications}/study.toml).
PROGRAM_PACKAGES=(bc bzip2 gawk mawk perl-base python3-minimal sqlite3 stress-ng xz-utils zstd)
APPLICATION_PACKAGES=(gromacs hpcc lammps)
# Rounds on this machine, half before the guest and half behind.
ROUNDS=8

# native NAME FIRST LAST FOLDER : runs the script NAME in rounds. The C library takes no code that guests do not announce.
native() {
    local round
    for round in $(seq "$2" "$3"); do
        echo "nodescope: round $round of $ROUNDS on this machine" >&2
        GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ \
            OPENSSL_ia32cap=:~0x20000000 "tests/bench/$1/$1" > "$4/native.$round"
    done
}

# compare_times NAME NODE : runs the script NAME here and in a guest. NODE is a description; if empty, this machine is measured.
compare_times() {
    local name=$1 node=$2 nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cp "tests/bench/$name"/* "$folder"
    if [ -n "$node" ]; then
        cp "$node" "$folder/node.toml"
    else
        "$nodescope" node measure > "$folder/node.toml"
    fi
    native "$name" 1 $((ROUNDS / 2)) "$folder"
    "$nodescope" run "$folder/study.toml" --results "$folder/results" --force > "$folder/report.txt"
    native "$name" $((ROUNDS / 2 + 1)) "$ROUNDS" "$folder"
    grep 'instructions in' "$folder/report.txt" || true
    "$nodescope" report "$folder/results" --full | grep -E '^(Sampled|Error of the clock)' -A 2 || true
    awk -f scripts/lib/programs.awk "$folder"/native.* "$folder/results/files/times"
}

programs() {
    install_missing "${PROGRAM_PACKAGES[@]}"
    compare_times programs "${1:-}"
}

applications() {
    install_missing "${APPLICATION_PACKAGES[@]}"
    compare_times applications "${1:-}"
}
