# `scripts/bench levels [NODE.toml]`: bandwidth of each level, of two published machines against their descriptions here, and of this machine.

# Runs the loops in a guest: a folder, node.model, further lines of [node], memory, and the arguments of the program.
levels_guest() {
    local folder=$1 model=$2 node=$3 memory=$4
    shift 4
    sed "s|@MODEL@|$model|; s|@NODE@|$node|; s|@MEMORY@|$memory|" tests/bench/levels/study.toml > "$folder/study.toml"
    printf '#!/bin/sh\nnodescope-guest mark levels\n./levels %s > bandwidths\nnodescope-guest put bandwidths bandwidths\n' "$*" > "$folder/guest"
    "${CARGO_TARGET_DIR:-target}/release/nodescope" run "$folder/study.toml" --results "$folder/results" --force > "$folder/report.txt"
    cp "$folder/results/files/bandwidths" "$folder/$model.out"
}

levels() {
    local node=${1:-} nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope here sizes machine
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    gcc -O2 -pthread -o "$folder/levels" tests/bench/levels/levels.c
    # Both at their nominal clocks: a Xeon E5-2680 and an EPYC 7452.
    levels_guest "$folder" sandy-bridge 'cores = 8\nfrequency = "2.7 GHz"' "2 GiB" 16384 131072 4194304 134217728 8
    levels_guest "$folder" zen2 'cores = 32\nfrequency = "2.35 GHz"' "4 GiB" 16384 262144 8388608 134217728 32
    for machine in sandy-bridge zen2; do
        awk -f scripts/lib/levels.awk -v machine="$machine" tests/bench/levels/published "$folder/$machine.out"
    done
    if [ -n "$node" ]; then
        cp "$node" "$folder/node.toml"
    else
        "$nodescope" node measure > "$folder/node.toml"
    fi
    here=$(nproc)
    sizes="16384 262144 8388608 536870912"
    levels_guest "$folder" node.toml "cores = $here" "2 GiB" "$sizes" "$here"
    for _ in 1 2 3 4 5 6; do
        # shellcheck disable=SC2086 # several sizes
        "$folder/levels" $sizes "$here"
    done > "$folder/native"
    awk -f scripts/lib/levels.awk -v machine=here "$folder/native" "$folder/node.toml.out"
}
