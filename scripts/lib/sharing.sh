# Sourced by scripts/bench: threads that share lines of memory, on this host and in windows.

# Prints a study of one node with so many cores. The node's description is the file in the second argument, if there is one.
sharing_study() {
    cat <<END
[study]
name = "sharing"
[cluster]
nodes = 1
[node]
cores = $1
memory = "512 MiB"
[job]
script = "measure"
mpi = "none"
files = ["sharing", "measure"]
[[window]]
open = { marker = "sharing" }
measure = "until closed"
END
    [ -z "$2" ] || cat "$2"
}

# Measures each kernel of tests/guests/programs/sharing.c: on this host with two threads, the lower quartile of rounds, and in windows
# with 2 to 16. The argument is a file with [caches] and other sections for the node.
sharing() {
    local description=${1:-} folder threads round rounds=20
    folder=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$folder'" EXIT
    gcc -O2 -g -pthread -o "$folder/sharing" tests/guests/programs/sharing.c
    for round in $(seq "$rounds"); do
        "$folder/sharing" 2 300000 | sed "s/^/host /"
    done > "$folder/figures"
    for threads in 2 4 8 16; do
        printf '#!/bin/sh\nnodescope-guest mark sharing\n./sharing %s 30000\n' "$threads" > "$folder/measure"
        sharing_study "$threads" "$description" > "$folder/study.toml"
        "${CARGO_TARGET_DIR:-target}/release/nodescope" run "$folder/study.toml" --quiet --results "$folder/$threads" > /dev/null
        grep -aE '^[a-z_]+ [0-9.]+ [0-9.]+ [0-9.]+' "$folder/$threads/console-node0.log" | tr -d '\r' | sed "s/^/$threads /"
    done >> "$folder/figures"
    echo "nanoseconds of one operation of each thread, with one thread and with several, and their ratio"
    echo "host: lower quartiles of $rounds rounds; the other columns: windows with so many threads"
    printf '%-14s%10s%10s%8s' '' 'host, 1' 'host, 2' ratio
    printf '%10s%8s' 'window 2' ratio 'window 4' ratio 'window 8' ratio 'window 16' ratio
    printf '\n'
    local kernel column
    for kernel in padded neighbours counter test_and_set ticket queue ping_pong mixed; do
        printf '%-14s' "$kernel"
        for column in 3 4 5; do
            awk -v kernel="$kernel" -v column="$column" '$1 == "host" && $2 == kernel { print $column }' "$folder/figures" |
                sort -g | sed -n "$(((rounds + 3) / 4))p"
        done | xargs printf '%10s%10s%8s'
        awk -v kernel="$kernel" '$1 != "host" && $2 == kernel { print $4, $5 }' "$folder/figures" | xargs printf '%10s%8s'
        printf '\n'
    done
}
