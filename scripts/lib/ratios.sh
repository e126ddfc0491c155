# `scripts/bench ratios [NODE.toml]`: which of two ways is faster, and by how much, on this machine and in a guest with a sampled window.

# Rounds on this machine before the guest, and as many behind; each has one part of SHARE of the guest's work.
ROUNDS=12
SHARE=10

ratios() {
    local node=${1:-} nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope half
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cp tests/bench/ratios/{study.toml,guest,pairs} "$folder"
    gcc -O2 -o "$folder/ratios" tests/bench/ratios/ratios.c
    if [ -n "$node" ]; then
        cp "$node" "$folder/node.toml"
    else
        "$nodescope" node measure > "$folder/node.toml"
    fi
    for half in before behind; do
        [ "$half" = before ] ||
            "$nodescope" run "$folder/study.toml" --results "$folder/results" --force > "$folder/report.txt"
        echo "nodescope: $ROUNDS rounds on this machine, $half the guest's run" >&2
        GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ \
            "$folder/ratios" "$ROUNDS" "$SHARE" > "$folder/native.$half"
    done
    awk -f scripts/lib/ratios.awk "$folder"/native.* "$folder/pairs" "$folder/results/files/times"
}
