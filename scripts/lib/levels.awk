# Compares bandwidths. The first file has lines "MACHINE LEVEL THREADS GB/s..." of published figures, or lines "LEVEL LOOP THREADS GB/s" of
# several rounds here, of which the greatest counts. The second file has such lines of a guest.

BEGIN { split("load copy update triad daxpy", loops) }
FNR == 1 { files++ }
/^#/ { next }
files == 1 && NF == 8 && $1 == machine { for (i in loops) expected[$2, loops[i], $3] = $(i + 3) }
files == 1 && NF == 4 && $4 > expected[$1, $2, $3] { expected[$1, $2, $3] = $4 }
files == 2 { guest[$1, $2, $3] = $4; row = $1 " " $3; if (!(row in seen)) { seen[row] = 1; rows[++n] = row } }
function magnitude(x) { return x < 0 ? -x : x }
END {
    printf "%-22s", machine ", GB/s"
    for (l = 1; l <= 5; l++) printf " %24s", loops[l]
    print ""
    for (r = 1; r <= n; r++) {
        split(rows[r], part, " ")
        printf "%-22s", part[1] ", " part[2] (part[2] == 1 ? " thread" : " threads")
        for (l = 1; l <= 5; l++) {
            known = expected[part[1], loops[l], part[2]]
            value = guest[part[1], loops[l], part[2]]
            if (known + 0 == 0) { printf " %24s", sprintf("%.1f", value); continue }
            error = value / known - 1
            printf " %24s", sprintf("%.1f for %.1f %+4.0f %%", value, known, 100 * error)
            count++
            near += magnitude(error) <= 0.15
        }
        print ""
    }
    printf "%d of %d within 15 %%\n", near, count
}
