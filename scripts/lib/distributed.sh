# shellcheck shell=bash
# Runs over several processes, beside runs of as many threads, by each way of messages. Sourced by scripts/bench.

# Prints the seconds of a run's host time. Arguments: results folder, study, options of nodescope run, "--" and a launcher if there is one.
seconds_of() {
    local results=$1 study=$2
    shift 2
    local options=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    "$@" "${CARGO_TARGET_DIR:-target}/release/nodescope" run "$study" --quiet --force --results "$results" "${options[@]}" |
        sed -n 's/^host .* in \([0-9.]*\) s on this host.*/\1/p'
}

# Measures all ways in turns, and prints medians and ratios. Argument: number of rounds.
distributed() {
    local rounds=${1:-3} folder program latency processes name times
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    folder=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$folder'" EXIT
    for program in ring alltoall; do
        mpicc.openmpi -O1 -o "$folder/$program" "tests/guests/programs/$program.c"
        for latency in 1.3 10; do
            cat > "$folder/$program-$latency.toml" <<END
[study]
name = "$program"
[cluster]
nodes = 8
boot = "once"
[node]
memory = "256 MiB"
[network]
latency = "$latency us"
[job]
command = "./$program"
files = ["$program"]
END
        done
    done
    # The first run boots the node. All later runs make their nodes of it.
    seconds_of "$folder/boot" "$folder/ring-1.3.toml" --host-threads=2 > "$folder/boot.txt"
    local mpirun=(mpirun.openmpi --oversubscribe)
    printf '%-22s%14s%14s%14s%14s%14s\n' program threads memory MPI "MPI, TCP" sockets
    for processes in 2 4; do
        for program in ring alltoall; do
            for latency in 1.3 10; do
                local study=$folder/$program-$latency.toml one=(--host-threads=1)
                for ((round = 0; round < rounds; round++)); do
                    seconds_of "$folder/threads" "$study" --host-threads="$processes" >> "$folder/threads.txt"
                    for name in memory sockets; do
                        seconds_of "$folder/$name" "$study" "${one[@]}" --workers=$((processes - 1)) --transport="$name" >> "$folder/$name.txt"
                    done
                    seconds_of "$folder/mpi" "$study" "${one[@]}" -- "${mpirun[@]}" -n "$processes" >> "$folder/mpi.txt"
                    seconds_of "$folder/tcp" "$study" "${one[@]}" -- "${mpirun[@]}" --mca btl self,tcp -n "$processes" >> "$folder/tcp.txt"
                    for name in memory sockets mpi tcp; do
                        diff -r "$folder/threads" "$folder/$name"
                    done
                done
                times=()
                for name in threads memory mpi tcp sockets; do
                    times+=("$(sort -n "$folder/$name.txt" | sed -n "$(((rounds + 1) / 2))p")")
                    rm "$folder/$name.txt"
                done
                jq --raw-output --null-input '$ARGS.positional | map(tonumber) | .[0] as $threads
                    | map("\(.) s \($threads / . * 100 | round / 100)") | join("\t")' --args "${times[@]}" |
                    awk -F'\t' -v row="$processes, $program, $latency us" '{ printf "%-22s%14s%14s%14s%14s%14s\n", row, $1, $2, $3, $4, $5 }'
            done
        done
    done
    echo "seconds, and speed beside as many threads of one process; all results are the same bytes"
}
