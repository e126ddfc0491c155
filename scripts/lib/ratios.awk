# Compares ratios of times: files of lines "NAME NANOSECONDS", the last one of the guest, and before it the file of pairs. The lower quartile
# of the other files counts.

function low(name, n,    i, j, x) {
    n = rounds[name]
    for (i = 2; i <= n; i++) {
        x = of[name, i]
        for (j = i - 1; j > 0 && of[name, j] > x; j--) of[name, j + 1] = of[name, j]
        of[name, j + 1] = x
    }
    return of[name, int((n + 3) / 4)]
}
FNR == 1 { files++ }
files < ARGC - 2 { of[$1, ++rounds[$1]] = $2 }
files == ARGC - 2 { from[++count] = $1; to[count] = $2 }
files == ARGC - 1 { guest[$1] = $2 }
END {
    printf "%-36s %9s %9s %8s\n", "", "here", "guest", "error"
    for (i = 1; i <= count; i++) {
        here = low(from[i]) / low(to[i])
        there = guest[from[i]] / guest[to[i]]
        error = there / here - 1
        wrong = (here > 1) != (there > 1)
        printf "%-36s %8.2fx %8.2fx %+7.1f %%%s\n", from[i] " / " to[i], here, there, 100 * error, wrong ? "  wrong sign" : ""
        d = error < 0 ? -error : error
        near += d <= 0.1
        signs += !wrong
        for (j = i - 1; j > 0 && sorted[j] > d; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = d
    }
    median = count % 2 ? sorted[(count + 1) / 2] : (sorted[count / 2] + sorted[count / 2 + 1]) / 2
    printf "%d ratios: %d within 10 %%, median error %.1f %%, %d signs right\n", count, near, 100 * median, signs
}
