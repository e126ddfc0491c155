# The strong-scaling campaign of docs/scaling-study.md; scripts/bench sources this file.
#
#     scripts/bench scaling PROGRAM CLUSTER [NODES...]
#
# PROGRAM is lammps or gromacs, CLUSTER gen1 or gen2 (guest-images/jobs/scaling). Runs the program on each number of nodes, by default 1 to
# 64, and prints the figures of all runs. Runs that are complete are not repeated. Environment:
#
#     SCALING_CORES=1  SCALING_THREADS=1  cores of a socket and threads of a core; a node has two sockets
#     SCALING_MEMORY="192 MiB"            memory of a guest
#     SCALING_RESULTS=results/scaling     folder of the results

JOBS=guest-images/jobs/scaling

# Writes the study of $1 on $3 nodes of cluster $2 to file $4.
scaling_study() {
    local program=$1 cluster=$2 nodes=$3 file=$4
    {
        printf '[study]\nname = "%s-%s-%s"\ntime_limit = "300 s"\n\n' "$program" "$cluster" "$nodes"
        sed -e "s/^nodes = .*/nodes = $nodes/" -e "s/^cores = .*/cores = ${SCALING_CORES:-1}/" \
            -e "s/^threads = .*/threads = ${SCALING_THREADS:-1}/" -e "s/^memory = .*/memory = \"${SCALING_MEMORY:-192 MiB}\"/" \
            "$JOBS/$cluster.toml"
        cat "$JOBS/$program.toml"
    } >"$file"
}

scaling() {
    local program=${1:?a program is needed: lammps or gromacs} cluster=${2:?a cluster is needed: gen1 or gen2}
    shift 2
    [ -e "$JOBS/$program.toml" ] || { echo "nodescope: no program $program; write lammps or gromacs" >&2; return 2; }
    [ -e "$JOBS/$cluster.toml" ] || { echo "nodescope: no cluster $cluster; write gen1 or gen2" >&2; return 2; }
    [ $# -gt 0 ] || set -- 1 2 4 8 16 32 64
    local results=${SCALING_RESULTS:-results/scaling} nodescope=${CARGO_TARGET_DIR:-target}/release/nodescope
    local folders=() nodes name failed=0
    mkdir -p "$results/studies"
    # Paths in a study begin at its folder.
    find "$JOBS" -maxdepth 1 -type f ! -name '*.toml' -exec cp -p {} "$results/studies" \;
    for nodes in "$@"; do
        name=$program-$cluster-$nodes
        scaling_study "$program" "$cluster" "$nodes" "$results/studies/$name.toml"
        if ! grep -qs '"exit_code": 0' "$results/$name/run.json"; then
            echo "nodescope: $name" >&2
            "$nodescope" run "$results/studies/$name.toml" --results "$results/$name" --force --host-times >"$results/$name.log" || {
                failed=1
                continue
            }
        fi
        folders+=("$results/$name")
    done
    [ ${#folders[@]} -gt 0 ] || return 1
    "$nodescope" scaling "${folders[@]}" || failed=1
    return "$failed"
}
