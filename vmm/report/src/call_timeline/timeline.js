// The timeline of MPI calls: its elements, its mouse and keys, what is visible and what is selected. `html.rs` joins this file with
// `data.js`, `drawing.js` and `interval.js`.

// Picoseconds of the narrowest view.
const NARROWEST = 200;
const MOST_ARROWS = 200;
const KEYS = [
  ["W, S or the wheel", "zoom in, zoom out"], ["A, D", "move to earlier, to later times"],
  ["\u2190, \u2192", "select the call before, the next call"], ["\u2191, \u2193", "select a call of the lane above, below"],
  ["Enter", "zoom to the selected call or interval"], ["I", "select the visible interval"],
  ["R, F", "show only the rank, or the function, of the selected call"],
  ["drag", "select an interval"], ["0", "show the whole run"], ["Esc", "clear the selection"], ["?", "show or hide these keys"],
];

class Timeline {
  constructor(figure, data) {
    Object.assign(this, { figure, data, from: 0, to: data.span_ps, call: null, interval: null, filter: { rank: null, call: null } });
    this.laneHeight = data.lanes.length > 32 ? 14 : data.lanes.length > 8 ? 20 : 30;
    // Communication phases are rows of a table elsewhere in the page.
    this.bands = Array.from(document.querySelectorAll("[data-band]"), ({ dataset: { band, from, to, colour } }) => (
      { name: band, from: from - data.from_ps, to: to - data.from_ps, colour }));
    this.classes = new Uint8Array(data.kinds.length);
    this.raster = document.createElement("canvas");
    this.build();
    this.listen();
    this.restyle();
    new ResizeObserver(() => this.redraw()).observe(this.scroll);
  }

  get lanes() { return this.data.lanes; }
  get plot() { return Math.max(this.canvas.clientWidth - NAMES, 50); }
  get scale() { return this.plot / (this.to - this.from); }
  x(ps) { return NAMES + (ps - this.from) * this.scale; }
  y(lane) { return AXIS + lane * this.laneHeight - this.scroll.scrollTop; }
  laneOf(call) { return first(0, this.lanes.length, (n) => this.lanes[n].end > call); }
  name(lane) {
    const { rank, thread } = this.lanes[lane];
    return `rank ${rank}${thread > 0 ? `, thread ${thread}` : ""}`;
  }

  // ---- the page's elements ----

  build() {
    const button = (text, title, act) => {
      const made = element("button", { type: "button", textContent: text, title });
      made.setAttribute("aria-label", title);
      made.addEventListener("click", act);
      return made;
    };
    const id = `${this.figure.id}-keys`;
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Timeline of MPI calls. Press the question mark for its keys.");
    this.canvas.setAttribute("aria-describedby", id);
    this.space = element("div", { className: "space" }, this.canvas);
    this.scroll = element("div", { className: "lanes" }, this.space);
    this.told = element("p", { className: "told" });
    this.told.setAttribute("role", "status");
    this.tip = element("div", { className: "tip", hidden: true });
    const rows = KEYS.flatMap(([key, what]) => [element("dt", { textContent: key }), element("dd", { textContent: what })]);
    this.keys = element("dl", { className: "keys", hidden: true, id }, ...rows);
    this.table = element("div", { className: "interval" });
    this.range = element("span", { className: "range" });
    const legend = this.figure.querySelector(".legend");
    for (const [name, colour] of [["waiting for other ranks", "waiting"], ["outside MPI", "lane"]]) {
      const sign = element("i");
      sign.style.background = `var(--${colour})`;
      legend.append(element("span", {}, sign, name));
    }
    this.figure.querySelector(".still").after(
      element("div", { className: "bar" },
        button("+", "Zoom in", () => this.zoom(0.5)), button("\u2212", "Zoom out", () => this.zoom(2)),
        button("\u2190", "Move to earlier times", () => this.pan(-0.25)), button("\u2192", "Move to later times", () => this.pan(0.25)),
        button("whole run", "Show the whole run", () => this.show(0, this.data.span_ps)),
        button("?", "Show or hide the keys of the timeline", () => { this.keys.hidden = !this.keys.hidden; }), this.range),
      this.scroll, legend, this.told, this.keys, this.table, this.tip);
    this.figure.classList.add("live");
    this.space.style.height = `${AXIS + this.lanes.length * this.laneHeight + 4}px`;
    this.say();
    this.tabulate();
  }

  listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const moment = (x) => this.from + (Math.min(Math.max(x, NAMES), NAMES + this.plot) - NAMES) / this.scale;
    let down = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x] = place(event);
      down = { x, moved: false, from: this.from, to: this.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (down && Math.abs(x - down.x) > 3) down.moved = true;
      if (!down || !down.moved) return this.point(x, y);
      this.tip.hidden = true;
      if (event.pointerType === "touch") {
        const by = (down.x - x) / this.plot * (down.to - down.from);
        return this.show(down.from + by, down.to + by);
      }
      const ends = [moment(down.x), moment(x)].sort((a, b) => a - b);
      this.interval = { from: ends[0], to: ends[1] };
      this.redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event);
      if (down && !down.moved) {
        const { call, lane } = this.find(x, y), named = this.lanes[Math.floor((y - this.y(0)) / this.laneHeight)];
        if (x < NAMES && y > AXIS && named) {
          document.dispatchEvent(new CustomEvent("nodescope-choose", { detail: { what: "rank", to: named.rank } }));
        }
        this.interval = null;
        this.select(call, lane);
      } else if (down && event.pointerType !== "touch") {
        this.call = null;
        this.say();
        this.tabulate();
      }
      down = null;
    });
    canvas.addEventListener("pointercancel", () => { down = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", () => this.zoomToSelection());
    // The wheel moves the page until the timeline has the focus, so that nobody is caught in the timeline.
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan(event.deltaX / this.plot);
      const [x] = place(event);
      this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -200), 200) / 250), moment(x));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.redraw());
    canvas.addEventListener("blur", () => this.redraw());
    this.scroll.addEventListener("scroll", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    document.addEventListener("nodescope-filter", (event) => {
      // A function of the program's code is no MPI function: it leaves the calls alone.
      const { rank, call } = event.detail, isCall = this.data.kinds.some((kind) => kind.function === call);
      this.filter = { rank, call: isCall ? call : null };
      this.restyle();
      this.tabulate();
    });
    document.addEventListener("nodescope-interval", (event) => {
      const from = event.detail.from - this.data.from_ps, to = event.detail.to - this.data.from_ps;
      if (!(to > 0 && from < this.data.span_ps)) return;
      this.interval = { from: Math.max(from, 0), to: Math.min(to, this.data.span_ps) };
      this.call = null;
      this.zoomToSelection();
      this.say();
      this.tabulate();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const near = this.call === null ? undefined : (this.data.entry[this.call] + this.data.exit[this.call]) / 2;
    const acts = {
      w: () => this.zoom(0.5, near), s: () => this.zoom(2, near), "+": () => this.zoom(0.5, near), "-": () => this.zoom(2, near),
      a: () => this.pan(-0.2), d: () => this.pan(0.2), arrowleft: () => this.step(-1), arrowright: () => this.step(1),
      arrowup: () => this.change(-1), arrowdown: () => this.change(1), enter: () => this.zoomToSelection(),
      0: () => this.show(0, this.data.span_ps), home: () => this.show(0, this.data.span_ps), "?": () => { this.keys.hidden = !this.keys.hidden; },
      i: () => { this.interval = { from: this.from, to: this.to }; this.call = null; this.say(); this.tabulate(); this.redraw(); },
      r: () => this.choose("rank"), f: () => this.choose("call"),
      escape: () => { this.interval = null; this.tip.hidden = true; this.select(null); },
    };
    const act = acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // ---- what is visible, and what is selected ----

  show(from, to) {
    const whole = this.data.span_ps;
    const span = Math.min(Math.max(to - from, NARROWEST), whole);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, 0), whole - span);
    this.to = this.from + span;
    this.redraw();
  }
  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.max((this.to - this.from) * factor, NARROWEST);
    const share = (around - this.from) / (this.to - this.from);
    this.show(around - share * span, around + (1 - share) * span);
  }
  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }
  zoomToSelection() {
    if (this.interval) return this.show(this.interval.from, this.interval.to);
    if (this.call === null) return;
    const from = this.data.entry[this.call], to = this.data.exit[this.call], room = Math.max(to - from, 100);
    this.show(from - room, to + room);
  }
  select(call, lane) {
    this.call = call;
    this.lane = lane;
    this.say();
    this.tabulate();
    this.redraw();
  }
  // Lets the whole page show the rank, or the function, of the selected call only.
  choose(what) {
    if (this.call === null) return;
    const to = what === "rank" ? this.lanes[this.laneOf(this.call)].rank : this.data.kinds[this.data.kind[this.call]].function;
    document.dispatchEvent(new CustomEvent("nodescope-choose", { detail: { what, to } }));
  }
  // Selects a call, and brings it into view.
  goTo(call) {
    const lane = this.laneOf(call), { entry, exit } = this.data, { scroll } = this;
    const top = AXIS + lane * this.laneHeight;
    scroll.scrollTop = Math.min(Math.max(scroll.scrollTop, top + this.laneHeight - scroll.clientHeight), top - AXIS);
    if (exit[call] < this.from || entry[call] > this.to) {
      const half = (this.to - this.from) / 2, middle = (entry[call] + exit[call]) / 2;
      this.show(middle - half, middle + half);
    }
    this.select(call, lane);
  }
  // Returns the call of a lane that is nearest to a time; null if the lane has none.
  nearest(lane, ps) {
    const { start, end } = this.lanes[lane], { entry, exit } = this.data;
    const next = first(start, end, (n) => exit[n] >= ps);
    if (next === end) return end > start ? end - 1 : null;
    return next > start && ps - exit[next - 1] < entry[next] - ps ? next - 1 : next;
  }
  step(by) {
    const middle = (this.from + this.to) / 2;
    if (this.call === null) {
      const found = this.nearest(this.lane ?? 0, middle);
      return found === null ? undefined : this.goTo(found);
    }
    const { start, end } = this.lanes[this.laneOf(this.call)];
    this.goTo(Math.min(Math.max(this.call + by, start), end - 1));
  }
  change(by) {
    const { entry } = this.data;
    const lane = this.call === null ? this.lane ?? -Math.min(by, 0) - 1 : this.laneOf(this.call);
    const ps = this.call === null ? (this.from + this.to) / 2 : entry[this.call];
    for (let to = lane + by; this.lanes[to]; to += by) {
      const found = this.nearest(to, ps);
      if (found !== null) return this.goTo(found);
    }
  }
  // Returns the lane and the call at a place of the canvas. Of several calls in one pixel, the longest is returned.
  find(x, y) {
    const lane = Math.floor((y - this.y(0)) / this.laneHeight);
    if (!this.lanes[lane] || x < NAMES || y < AXIS) return { lane: null, call: null };
    const { start, end } = this.lanes[lane], { entry, exit } = this.data;
    const ps = this.from + (x - NAMES) / this.scale, pixel = 1 / this.scale;
    let call = null;
    for (let n = first(start, end, (at) => exit[at] >= ps - pixel); n < end && entry[n] <= ps + pixel; n++) {
      const holds = (at) => entry[at] <= ps && ps <= exit[at] && exit[at] - entry[at] >= pixel;
      if (call === null || holds(n) || (!holds(call) && exit[n] - entry[n] > exit[call] - entry[call])) call = n;
    }
    return { lane, call, ps };
  }

  // ---- words ----

  describe(call) {
    const { data } = this, kind = data.kinds[data.kind[call]];
    const extent = data.exit[call] - data.entry[call], inside = extent - data.outside[call];
    const lines = [
      `${this.name(this.laneOf(call))}: ${kind.function}${kind.site ? ` at ${kind.site}` : ""}`,
      `${time(extent)}, from ${this.moment(data.entry[call], 1000)}`,
    ];
    if (data.waited[call] > 0) lines.push(`waited ${time(data.waited[call])} for other ranks`);
    if (data.outside[call] > 0) lines.push(`${time(inside)} inside MPI`);
    if (data.calls[call] > 1) lines.push(`${grouped(data.calls[call])} calls`);
    if (data.to[call]) lines.push(`to rank ${data.to[call] - 1}`);
    if (data.sent[call]) lines.push(`${bytes(data.sent[call])} sent`);
    if (data.from[call]) lines.push(`from rank ${data.from[call] - 1}`);
    if (data.received[call]) lines.push(`${bytes(data.received[call])} received`);
    return lines;
  }
  computing(lane, ps) {
    const { start, end } = this.lanes[lane], { entry, exit, span_ps } = this.data;
    const next = first(start, end, (n) => entry[n] > ps);
    const from = next > start ? exit[next - 1] : 0, to = next < end ? entry[next] : span_ps;
    return [`${this.name(lane)}: outside MPI`, `${time(to - from)}, from ${this.moment(from, 1000)}`];
  }
  // Returns a time since power-on in seconds, with as many decimals as a step in picoseconds needs.
  moment(ps, step) {
    const decimals = Math.min(Math.max(12 - Math.floor(Math.log10(step) + 1e-9), 0), 12);
    return `${((this.data.from_ps + ps) / 1e12).toFixed(decimals)} s`;
  }
  say() {
    const messages = this.call === null ? [] : this.messagesOf(this.call).map(({ send, receive }) => {
      const { entry, exit } = this.data, other = send === this.call ? receive : send;
      const what = send === this.call ? "its message is received by" : "its message comes from";
      return `${what} ${this.name(this.laneOf(other))}, ${time(Math.max(exit[receive] - entry[send], 0))} after the send began`;
    });
    this.told.textContent = this.call !== null ? [...this.describe(this.call), ...messages.slice(0, 4)].join("; ") :
      this.interval ? `Interval of ${time(this.interval.to - this.interval.from)}, from ${this.moment(this.interval.from, 1000)}` :
        "Click a call to see its messages. Drag across the lanes to sum up an interval. Once clicked, the timeline follows wheel and keys; ? lists them.";
  }
  point(x, y) {
    const { lane, call, ps } = this.find(x, y);
    const holds = ({ from, to }) => x >= NAMES && x >= this.x(from) && x <= this.x(to);
    const phase = y < AXIS - 11 ? this.bands.find(holds) : null;
    const over = y < AXIS && !phase ? this.data.windows.find(holds) : phase;
    const lines = over ? [phase ? over.name : `window "${over.name}"`, `${time(over.to - over.from)}, from ${this.moment(over.from, 1000)}`] :
      lane === null ? [] : call === null ? this.computing(lane, ps) : this.describe(call);
    this.tip.hidden = lines.length === 0;
    if (lines.length === 0) return;
    this.tip.replaceChildren(...lines.map((line) => element("div", { textContent: line })));
    const box = this.canvas.getBoundingClientRect(), outer = this.figure.getBoundingClientRect();
    const left = x + box.left - outer.left + 14;
    this.tip.style.left = `${Math.max(Math.min(left, outer.width - this.tip.offsetWidth - 4), 0)}px`;
    this.tip.style.top = `${y + box.top - outer.top + 18}px`;
  }

  // ---- messages ----

  messagesOf(call) {
    const { sends, receives } = this.data, found = [];
    for (let n = first(0, sends.length, (at) => sends[at] >= call); sends[n] === call && found.length < MOST_ARROWS; n++)
      found.push({ send: call, receive: receives[n] });
    for (let n = receives.indexOf(call); n >= 0 && found.length < MOST_ARROWS; n = receives.indexOf(call, n + 1))
      found.push({ send: sends[n], receive: call });
    return found;
  }
}

Object.assign(Timeline.prototype, drawing, intervals);

for (const figure of document.querySelectorAll("figure.timeline")) {
  const text = figure.querySelector("script.calls").textContent;
  decode(text).then((data) => { figure.timeline = new Timeline(figure, data); }, (error) => {
    // The picture without a script stays.
    figure.append(element("p", { textContent: `This browser cannot show the calls one by one: ${error.message}` }));
  });
}
