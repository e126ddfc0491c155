// Tables of an interval of the timeline: sums of the calls by function and call site, and by rank.

const MOST_ROWS = 100;

const intervals = {
  tabulate() {
    const { data, interval, filter } = this;
    this.table.replaceChildren();
    if (!interval) return;
    const { entry, exit, outside, waited } = data, { from, to } = interval;
    const sum = () => ({ calls: 0, inside: 0, waited: 0, sent: 0, received: 0 });
    const kinds = data.kinds.map(sum), lanes = data.lanes.map(sum);
    data.lanes.forEach(({ start, end, rank }, lane) => {
      if (filter.rank !== null && filter.rank !== rank) return;
      for (let n = first(start, end, (at) => exit[at] > from); n < end && entry[n] < to; n++) {
        const kind = data.kind[n];
        if (filter.call !== null && data.kinds[kind].function !== filter.call) continue;
        const extent = exit[n] - entry[n], part = Math.min(exit[n], to) - Math.max(entry[n], from);
        const share = extent > 0 ? part / extent : 1;
        // A call waits from its entry on, a run of polls all the time.
        const until = outside[n] > 0 ? null : entry[n] + waited[n];
        const waits = until === null ? waited[n] * share : Math.max(Math.min(until, to) - Math.max(entry[n], from), 0);
        for (const into of [kinds[kind], lanes[lane]]) {
          into.calls += data.calls[n];
          into.inside += part - outside[n] * share;
          into.waited += waits;
          into.sent += data.sent[n];
          into.received += data.received[n];
        }
      }
    });
    const shown = data.lanes.filter(({ rank }) => filter.rank === null || filter.rank === rank);
    const span = to - from, all = span * shown.length;
    const cells = (of, whole) => [grouped(of.calls), time(of.inside), percent(of.inside, whole), time(of.waited), bytes(of.sent), bytes(of.received)];
    const order = kinds.map((of, n) => ({ of, kind: data.kinds[n] })).filter(({ of }) => of.calls > 0).sort((a, b) => b.of.inside - a.of.inside);
    const figures = ["calls", "in MPI", "share", "waiting", "sent", "received"];
    const functions = order.slice(0, MOST_ROWS).map(({ of, kind }) => [kind.function, kind.site || "-", ...cells(of, all)]);
    const ranks = data.lanes.map((lane, n) => ({ n, lane })).filter(({ lane }) => shown.includes(lane))
      .map(({ n }) => [this.name(n), time(Math.max(span - lanes[n].inside, 0)), ...cells(lanes[n], span)]);
    const outsideHead = filter.call === null ? "outside MPI" : "elsewhere";
    const title = `${filter.rank === null ? "" : `, rank ${filter.rank} only`}${filter.call === null ? "" : `, ${filter.call} only`}`;
    this.table.append(
      this.tableOf(`Calls in the interval of ${time(span)}${title}`, ["function", "call site", ...figures], functions, 2),
      this.tableOf(`Ranks in the interval${title}`, ["rank", outsideHead, ...figures], ranks, 1));
    if (order.length > MOST_ROWS) this.table.append(element("p", { textContent: `${order.length - MOST_ROWS} more rows are not shown.` }));
  },
  tableOf(title, head, rows, names) {
    // Names choose their function or rank.
    const what = head[0] === "rank" ? "rank" : "call";
    const pick = (text) => {
      const button = element("button", { type: "button", className: "pick", textContent: text });
      button.dataset.pick = what;
      return button;
    };
    const name = (text) => (what === "rank" && !/^rank [0-9]+$/.test(text) ? text : pick(text));
    const cell = (tag, text, n) => element(tag, { className: n < names ? "name" : "" }, tag === "td" && n === 0 ? name(text) : text);
    const row = (tag, cells) => element("tr", {}, ...cells.map((text, n) => cell(tag, text, n)));
    const table = element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((cells) => row("td", cells))));
    const wide = element("div", { className: "wide", tabIndex: 0 }, table);
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", title);
    return element("div", { className: "block" }, element("h3", { textContent: title }), wide);
  },
};
