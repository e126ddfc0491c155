# Compares times and their ratios: files of lines "NAME NANOSECONDS", the last one of the guest, and before it the file of pairs. The lower
# decile of the other files counts. A way whose median is more than 10 % above it is not steady.

function insert(values, n, x) {
    for (; n > 1 && values[n - 1] > x; n--) values[n] = values[n - 1]
    values[n] = x
}
function here(name, part,    i, n, sorted) {
    n = rounds[name]
    for (i = 1; i <= n; i++) insert(sorted, i, of[name, i])
    return sorted[int(n * part + 1)]
}
function steady(name) { return here(name, 0.5) < 1.1 * here(name, 0.1) }
function magnitude(x) { return x < 0 ? -x : x }
function summary(text, errors, n,    i, near, median) {
    if (!n) return
    for (i = 1; i <= n; i++) near += errors[i] <= 0.1
    median = n % 2 ? errors[(n + 1) / 2] : (errors[n / 2] + errors[n / 2 + 1]) / 2
    printf "%s, %d: median error %.1f %%, %d within 10 %%\n", text, n, 100 * median, near
}
FNR == 1 { files++ }
files < ARGC - 2 { of[$1, ++rounds[$1]] = $2 }
files == ARGC - 2 { from[++count] = $1; to[count] = $2 }
files == ARGC - 1 { guest[$1] = $2 }
END {
    printf "%-20s %12s %8s %12s %8s\n", "", "here", "median", "guest", "error"
    for (i = 1; i <= 2 * count; i++) {
        name = i % 2 ? from[(i + 1) / 2] : to[i / 2]
        if (shown[name]++) continue
        low = here(name, 0.1)
        error = guest[name] / low - 1
        printf "%-20s %9.3f ns %+6.1f %% %9.3f ns %+6.1f %%%s\n", name, low, 100 * (here(name, 0.5) / low - 1), guest[name], 100 * error,
            steady(name) ? "" : "  not steady here"
        insert(times, ++n, magnitude(error))
        if (steady(name)) insert(steady_times, ++steady_n, magnitude(error))
    }
    summary("steady times", steady_times, steady_n)
    summary("all times", times, n)
    printf "\n%-36s %9s %9s %8s\n", "", "here", "guest", "error"
    for (i = 1; i <= count; i++) {
        native = here(from[i], 0.1) / here(to[i], 0.1)
        emulated = guest[from[i]] / guest[to[i]]
        error = emulated / native - 1
        wrong = (native > 1) != (emulated > 1)
        both = steady(from[i]) && steady(to[i])
        printf "%-36s %8.2fx %8.2fx %+7.1f %%%s%s\n", from[i] " / " to[i], native, emulated, 100 * error, both ? "" : "  not steady here",
            wrong ? "  wrong sign" : ""
        insert(ratios, i, magnitude(error))
        if (both) insert(steady_ratios, ++ratios_n, magnitude(error))
        signs += !wrong
    }
    summary("steady ratios", steady_ratios, ratios_n)
    summary("all ratios", ratios, count)
    printf "signs right: %d of %d\n", signs, count
}
