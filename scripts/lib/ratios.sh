# `scripts/bench ratios [NODE.toml]`: which of two ways is faster, and by how much, on this machine and in a guest with a sampled window.

# Rounds on this machine, half before the guest and half behind.
ROUNDS=4

ratios() {
    local node=${1:-} nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope round
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cp tests/bench/ratios/{study.toml,guest,pairs} "$folder"
    gcc -O2 -o "$folder/ratios" tests/bench/ratios/ratios.c
    if [ -n "$node" ]; then
        cp "$node" "$folder/node.toml"
    else
        "$nodescope" node measure > "$folder/node.toml"
    fi
    for round in $(seq "$ROUNDS"); do
        [ "$round" -ne $((ROUNDS / 2 + 1)) ] ||
            "$nodescope" run "$folder/study.toml" --results "$folder/results" --force > "$folder/report.txt"
        echo "nodescope: round $round of $ROUNDS on this machine" >&2
        GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ \
            "$folder/ratios" > "$folder/native.$round"
    done
    awk -f scripts/lib/ratios.awk "$folder"/native.* "$folder/pairs" "$folder/results/files/times"
}
