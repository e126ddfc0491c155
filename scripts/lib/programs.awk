# Compares the times of programs: files of lines "NAME SECONDS", the last one of the guest. Of the other files the lower quartile counts.
# A program whose quartiles differ by more than 10 % is listed, and does not count.

function sorted(name, n,    i, j, x) {
    for (i = 2; i <= n; i++) {
        x = of[name, i]
        for (j = i - 1; j > 0 && of[name, j] > x; j--) of[name, j + 1] = of[name, j]
        of[name, j + 1] = x
    }
}
function median(n,    i, j, x) {
    for (i = 2; i <= n; i++) {
        x = error[i]
        for (j = i - 1; j > 0 && error[j] > x; j--) error[j + 1] = error[j]
        error[j + 1] = x
    }
    return n % 2 ? error[(n + 1) / 2] : (error[n / 2] + error[n / 2 + 1]) / 2
}
FNR == 1 { files++ }
files < ARGC - 1 { of[$1, ++rounds[$1]] = $2; if (rounds[$1] == 1) names[++count] = $1 }
files == ARGC - 1 { guest[$1] = $2 }
END {
    printf "%-20s %9s %9s %9s %8s\n", "", "here", "quartiles", "guest", "error"
    for (i = 1; i <= count; i++) {
        name = names[i]
        n = rounds[name]
        sorted(name, n)
        low = of[name, int((n + 3) / 4)]
        high = of[name, int((3 * n + 3) / 4)]
        if (!(name in guest) || low == 0) { printf "%-20s has no time\n", name; continue }
        ratio = guest[name] / low
        steady = high / low < 1.1
        printf "%-20s %7.3f s %8.1f %% %7.3f s %+6.1f %%%s\n", name, low, 100 * (high / low - 1), guest[name], 100 * (ratio - 1), steady ? "" : "  not steady here"
        for (set = steady ? 1 : 2; set <= 2; set++) {
            d = ratio > 1 ? ratio - 1 : 1 - ratio
            l = log(ratio); if (l < 0) l = -l
            k[set]++; errors[set, k[set]] = d; sum[set] += d; logs[set] += l; far[set] += d > 0.3
        }
    }
    for (set = 1; set <= 2; set++) if (k[set] > 0) {
        for (i = 1; i <= k[set]; i++) error[i] = errors[set, i]
        printf "%s %d: median error %.1f %%, mean %.1f %%, |ln| %.3f, %d beyond 30 %%\n", set == 1 ? "steady programs," : "all programs,", k[set], 100 * median(k[set]), 100 * sum[set] / k[set], logs[set] / k[set], far[set]
    }
}
