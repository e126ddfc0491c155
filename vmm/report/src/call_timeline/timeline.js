// The timeline of MPI calls: decodes the calls, draws the visible part on a canvas, and follows mouse and keyboard.
// Times are picoseconds since the program's first entry into MPI.
(() => {
  "use strict";
  const GROUPS = 5, WAITING = 5, OTHER = 6, CLASSES = 7;
  const AXIS = 42, NAMES = 78, GAP = 3, NARROWEST = 200;
  const CELLS = 8192, CELLS_FROM = 100000;
  const MOST_LABELS = 2000, MOST_ARROWS = 200, MOST_ROWS = 100;
  const KEYS = [
    ["W, S or the wheel", "zoom in, zoom out"], ["A, D", "move to earlier, to later times"],
    ["\u2190, \u2192", "select the call before, the next call"], ["\u2191, \u2193", "select a call of the lane above, below"],
    ["Enter", "zoom to the selected call or interval"], ["I", "select the visible interval"],
    ["drag", "select an interval"], ["0", "show the whole run"], ["Esc", "clear the selection"], ["?", "show or hide these keys"],
  ];

  const significant = (value) => value.toFixed(value >= 99.995 ? 1 : value >= 9.9995 ? 2 : 3);
  const time = (ps) => {
    for (const [unit, size] of [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]])
      if (ps >= 0.99995 * size) return `${significant(ps / size)} ${unit}`;
    return ps === 0 ? "0 s" : `${ps.toFixed(0)} ps`;
  };
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    for (; value >= 1023.95; value /= 1024) unit += 1;
    return unit === 0 ? `${value} B` : `${value.toFixed(value >= 99.95 ? 1 : 2)} ${units[unit]}`;
  };
  const grouped = (value) => value.toLocaleString("en-US");
  const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-");
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // ---- data: encode.rs describes the format ----

  async function decode(text) {
    const raw = atob(text), packed = new Uint8Array(raw.length);
    for (let n = 0; n < raw.length; n++) packed[n] = raw.charCodeAt(n);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const all = new Uint8Array(await new Response(stream).arrayBuffer());
    let at = 0;
    const next = () => {
      let byte = all[at++], value = byte & 127;
      for (let unit = 128; byte > 127; unit *= 128) {
        byte = all[at++];
        value += (byte & 127) * unit;
      }
      return value;
    };
    const size = next();
    const data = JSON.parse(new TextDecoder().decode(all.subarray(at, at + size)));
    at += size;
    let count = 0;
    for (const lane of data.lanes) {
      lane.start = count;
      count += lane.calls;
      lane.end = count;
    }
    const column = (Type, length) => {
      const values = new Type(length);
      for (let n = 0; n < length; n++) values[n] = next();
      return values;
    };
    data.entry = column(Float64Array, count);
    data.exit = column(Float64Array, count);
    for (const { start, end } of data.lanes) {
      let before = 0;
      for (let n = start; n < end; n++) {
        data.entry[n] += before;
        before = data.exit[n] += data.entry[n];
      }
    }
    data.outside = column(Float64Array, count);
    data.waited = column(Float64Array, count);
    data.kind = column(Uint32Array, count);
    data.calls = column(Float64Array, count);
    data.sent = column(Float64Array, count);
    data.received = column(Float64Array, count);
    // What a pixel needs of a call: short numbers, for speed.
    data.waits = Float32Array.from(data.waited);
    data.works = Float32Array.from(data.exit, (exit, n) => exit - data.entry[n] - data.outside[n] - data.waited[n]);
    // Ranks are one too large; 0 is no rank.
    data.to = column(Float64Array, count);
    data.from = column(Float64Array, count);
    data.sends = column(Uint32Array, data.messages);
    for (let n = 1; n < data.messages; n++) data.sends[n] += data.sends[n - 1];
    const steps = column(Float64Array, data.messages);
    data.receives = new Uint32Array(data.messages);
    let receive = 0;
    for (let n = 0; n < data.messages; n++) {
      receive += steps[n] % 2 ? -(steps[n] + 1) / 2 : steps[n] / 2;
      data.receives[n] = receive;
    }
    return data;
  }

  // Returns zeros for the sums of so many pixels or cells.
  const sums = (count, Type) => ({ shares: new Type(count * CLASSES), longest: new Type(count), longestClass: new Uint8Array(count) });

  // Returns the first index from start to end of which `is` holds, which holds for all later ones, too.
  const first = (start, end, is) => {
    while (start < end) {
      const middle = (start + end) >> 1;
      if (is(middle)) end = middle; else start = middle + 1;
    }
    return start;
  };

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
        this.filter = event.detail;
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

    // ---- drawing ----

    restyle() {
      const style = getComputedStyle(this.figure), probe = document.createElement("canvas").getContext("2d");
      const names = ["--g0", "--g1", "--g2", "--g3", "--g4", "--waiting", "--other", "--lane", "--panel"];
      this.colours = new Uint32Array(names.map((name) => {
        probe.fillStyle = style.getPropertyValue(name).trim();
        const hex = parseInt(probe.fillStyle.slice(1), 16);
        return (0xff000000 | (hex & 255) << 16 | (hex & 0xff00) | hex >> 16) >>> 0;
      }));
      this.ink = Object.fromEntries(["ink", "soft", "line", "panel", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      const { call } = this.filter;
      this.data.kinds.forEach((kind, n) => { this.classes[n] = call === null || kind.function === call ? kind.group : OTHER; });
      this.cells = [];
      this.redraw();
    }
    redraw() {
      if (this.pending) return;
      this.pending = requestAnimationFrame(() => {
        this.pending = 0;
        this.draw();
      });
    }
    // Draws the visible part. Only this part is scanned, and what takes less than a pixel is summed up in the pixel.
    draw() {
      const { canvas, scroll } = this, ratio = devicePixelRatio || 1;
      const wide = canvas.parentElement.clientWidth, high = scroll.clientHeight;
      if (wide === 0 || high === 0) return;
      const size = [Math.round(wide * ratio), Math.round(high * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
      const pen = canvas.getContext("2d", { alpha: false });
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = this.ink.panel;
      pen.fillRect(0, 0, wide, high);
      const top = Math.max(Math.floor(scroll.scrollTop / this.laneHeight), 0);
      const bottom = Math.min(Math.ceil((scroll.scrollTop + high - AXIS) / this.laneHeight), this.lanes.length);
      this.labels = [];
      this.drawLanes(pen, top, bottom);
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      this.drawLabels(pen);
      this.drawSelection(pen, high);
      this.drawNames(pen, top, bottom);
      this.drawAxis(pen, wide);
      this.range.textContent = `${time(this.to - this.from)} of ${time(this.data.span_ps)}`;
    }
    drawLanes(pen, top, bottom) {
      const wide = Math.floor(this.plot), high = (bottom - top) * this.laneHeight;
      if (high <= 0) return;
      const { raster } = this;
      if (raster.width !== wide || raster.height !== high) {
        [raster.width, raster.height] = [wide, high];
        this.image = raster.getContext("2d").createImageData(wide, high);
        this.pixels = new Uint32Array(this.image.data.buffer);
        this.sums = sums(wide, Float64Array);
      }
      this.pixels.fill(this.colours[CLASSES + 1]);
      // In a view of much of a long run, pixels are made of cells: a cell is a half of a pixel at most.
      const fromCells = this.data.entry.length >= CELLS_FROM && (this.to - this.from) / wide >= 2 * this.data.span_ps / CELLS;
      for (let lane = top; lane < bottom; lane++) {
        this.sums.shares.fill(0);
        this.sums.longest.fill(0);
        if (fromCells) this.addCells(lane, wide); else this.scan(lane, this.from, this.to, wide, this.sums, this.labels);
        this.paint((lane - top) * this.laneHeight, wide);
      }
      const to = raster.getContext("2d");
      to.putImageData(this.image, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(raster, NAMES, this.y(top));
    }
    // Sums up a lane's calls by pixel: the share of each class in the pixel's time, and the class of the longest call. Adds long calls to
    // `labels`.
    scan(lane, from, to, wide, { shares, longest, longestClass }, labels) {
      const { entry, exit, outside, waited, waits, works, kind } = this.data, { classes } = this;
      const { start, end, rank } = this.lanes[lane], scale = wide / (to - from);
      const dimmed = this.filter.rank !== null && this.filter.rank !== rank;
      const add = (a, b, part, weight) => {
        a = Math.max(a, 0);
        b = Math.min(b, wide);
        for (let x = Math.floor(a); x < b; x++) shares[x * CLASSES + part] += (Math.min(b, x + 1) - Math.max(a, x)) * weight;
      };
      const last = first(start, end, (at) => entry[at] >= to);
      for (let n = first(start, end, (at) => exit[at] > from); n < last; n++) {
        const a = (entry[n] - from) * scale, b = (exit[n] - from) * scale, extent = exit[n] - entry[n];
        const own = dimmed ? OTHER : classes[kind[n]], pixel = a | 0;
        if (a >= 0 && b < pixel + 1) {
          const at = pixel * CLASSES;
          if (own === OTHER) {
            shares[at + OTHER] += (waits[n] + works[n]) * scale;
          } else {
            shares[at + WAITING] += waits[n] * scale;
            shares[at + own] += works[n] * scale;
          }
          if (extent > longest[pixel]) {
            longest[pixel] = extent;
            longestClass[pixel] = own !== OTHER && waits[n] > works[n] ? WAITING : own;
          }
          continue;
        }
        const wait = own === OTHER ? 0 : waited[n] * scale;
        if (outside[n] > 0) {
          // A run of polls waits and works in turn.
          const share = wait / (b - a);
          if (share > 0) add(a, b, WAITING, share);
          add(a, b, own, 1 - share - outside[n] / extent);
        } else {
          if (wait > 0) add(a, a + wait, WAITING, 1);
          add(a + wait, b, own, 1);
        }
        for (let x = Math.max(pixel, 0); x < b && x < wide; x++) {
          if (extent <= longest[x]) continue;
          longest[x] = extent;
          longestClass[x] = x < a + wait ? WAITING : own;
        }
        if (b - a > 5 && labels.length < MOST_LABELS) labels.push({ call: n, lane, a, b });
      }
    }
    // Returns a lane's calls of the whole run, summed up by cells.
    cellsOf(lane) {
      if (!this.cells[lane]) {
        const cells = { ...sums(CELLS, Float32Array), labels: [] };
        this.scan(lane, 0, this.data.span_ps, CELLS, cells, cells.labels);
        this.cells[lane] = cells;
      }
      return this.cells[lane];
    }
    // Sums up a lane's cells by pixel, as `scan` sums up its calls.
    addCells(lane, wide) {
      const { shares, longest, longestClass } = this.sums, cells = this.cellsOf(lane);
      const cell = this.data.span_ps / CELLS, scale = wide / (this.to - this.from), part = cell * scale;
      const last = Math.min(Math.ceil(this.to / cell), CELLS);
      for (let n = Math.floor(this.from / cell); n < last; n++) {
        if (cells.longest[n] === 0) continue;
        const pixel = Math.max(Math.floor((n * cell - this.from) * scale), 0);
        for (let k = 0; k < CLASSES; k++) shares[pixel * CLASSES + k] += cells.shares[n * CLASSES + k] * part;
        if (cells.longest[n] <= longest[pixel]) continue;
        longest[pixel] = cells.longest[n];
        longestClass[pixel] = cells.longestClass[n];
      }
      for (const { call } of cells.labels) {
        const a = (this.data.entry[call] - this.from) * scale, b = (this.data.exit[call] - this.from) * scale;
        if (b - a > 5 && b > 0 && a < wide && this.labels.length < MOST_LABELS) this.labels.push({ call, lane, a, b });
      }
    }
    paint(top, wide) {
      const { colours, pixels, sums: { shares, longest, longestClass } } = this, high = this.laneHeight - GAP;
      for (let y = 0; y < high; y++) pixels.fill(colours[CLASSES], (top + y) * wide, (top + y + 1) * wide);
      for (let x = 0; x < wide; x++) {
        if (longest[x] === 0) continue;
        let sum = 0, done = 0, at = (top + high - 1) * wide + x;
        for (let turn = 0; turn < CLASSES; turn++) {
          const part = (turn + WAITING) % CLASSES, share = shares[x * CLASSES + part];
          if (share <= 0) continue;
          sum += share;
          // A pixel shows the class of its longest call, however short it is.
          let rows = Math.round(Math.min(sum, 1) * high) - done;
          if (part === longestClass[x]) rows = Math.max(rows, 2);
          for (rows = Math.min(rows, high - done); rows > 0; rows--, done++, at -= wide) pixels[at] = colours[part];
        }
      }
    }
    drawLabels(pen) {
      const { laneHeight } = this;
      for (const { call, lane, a, b } of this.labels) {
        const left = NAMES + Math.max(a, 0), right = NAMES + Math.min(b, this.plot), y = this.y(lane);
        pen.fillStyle = this.ink.panel;
        if (b <= this.plot) pen.fillRect(NAMES + b - 1, y, 1, laneHeight - GAP);
        const room = right - left - 8;
        if (room < 34 || laneHeight < 18) continue;
        const text = this.data.kinds[this.data.kind[call]].function;
        const shown = pen.measureText(text).width <= room ? text : text.replace("MPI_", "");
        if (pen.measureText(shown).width > room) continue;
        const split = NAMES + a + this.data.waited[call] * this.scale;
        pen.fillStyle = this.labelInk(split > left + 30 ? WAITING : this.classes[this.data.kind[call]]);
        pen.fillText(shown, left + 4, y + (laneHeight - GAP) / 2 + 1);
      }
    }
    // Returns black or white, whichever stands out from a class's colour.
    labelInk(part) {
      const linear = (value) => (value <= 0.04 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      const light = [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => sum + weight * linear((this.colours[part] >> (8 * n) & 255) / 255), 0);
      return light > 0.179 ? "#000" : "#fff";
    }
    drawNames(pen, top, bottom) {
      pen.fillStyle = this.ink.panel;
      pen.fillRect(0, 0, NAMES, this.canvas.clientHeight);
      const every = Math.max(Math.ceil(13 / this.laneHeight), 1);
      for (let lane = top; lane < bottom; lane++) {
        const { rank, thread } = this.lanes[lane];
        if (lane % every) continue;
        pen.fillStyle = this.filter.rank === rank ? this.ink.accent : thread > 0 ? this.ink.soft : this.ink.ink;
        pen.fillText(thread > 0 ? `  thread ${thread}` : `rank ${rank}`, 6, this.y(lane) + (this.laneHeight - GAP) / 2 + 1, NAMES - 10);
      }
    }
    drawAxis(pen, wide) {
      pen.fillStyle = this.ink.panel;
      pen.fillRect(0, 0, wide, AXIS - 2);
      const least = (this.to - this.from) / this.plot * 130, power = 10 ** Math.floor(Math.log10(least));
      const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= least);
      const since = this.data.from_ps;
      pen.strokeStyle = this.ink.line;
      pen.fillStyle = this.ink.soft;
      for (let at = Math.ceil((since + this.from) / step) * step; at <= since + this.to; at += step) {
        const x = Math.round(this.x(at - since)) + 0.5;
        pen.beginPath();
        pen.moveTo(x, 18);
        pen.lineTo(x, 24);
        pen.stroke();
        const text = this.moment(at - since, step), half = pen.measureText(text).width / 2;
        pen.fillText(text, Math.min(Math.max(x - half, NAMES), wide - 2 * half - 2), 9);
      }
      const strip = ({ from, to }, colour, y) => {
        const left = Math.max(this.x(from), NAMES), right = Math.min(this.x(to), NAMES + this.plot);
        if (right < NAMES || left > NAMES + this.plot) return;
        pen.fillStyle = colour;
        pen.fillRect(left, y, Math.max(right - left, 2), 5);
      };
      for (const band of this.bands) strip(band, band.colour, AXIS - 17);
      for (const window of this.data.windows) strip(window, this.ink.ink, AXIS - 10);
    }
    drawSelection(pen, high) {
      const { data } = this;
      for (const window of data.windows) {
        pen.fillStyle = `color-mix(in srgb, ${this.ink.ink} 7%, transparent)`;
        pen.fillRect(this.x(window.from), AXIS - 4, this.x(window.to) - this.x(window.from), high);
      }
      if (this.interval) {
        const from = this.x(this.interval.from), to = this.x(this.interval.to);
        pen.fillStyle = `color-mix(in srgb, ${this.ink.accent} 22%, transparent)`;
        pen.fillRect(from, AXIS - 4, Math.max(to - from, 1), high);
        pen.fillStyle = this.ink.accent;
        for (const x of [from, to]) pen.fillRect(x - 0.5, AXIS - 4, 1, high);
      }
      if (this.call === null) return;
      const y = this.y(this.laneOf(this.call)), from = this.x(data.entry[this.call]), to = this.x(data.exit[this.call]);
      pen.strokeStyle = this.ink.ink;
      pen.lineWidth = 2;
      pen.strokeRect(Math.max(from, NAMES - 4) - 1, y - 1, Math.min(Math.max(to - Math.max(from, NAMES - 4), 1), this.plot + 8) + 2, this.laneHeight - GAP + 2);
      for (const { send, receive } of this.messagesOf(this.call)) this.drawArrow(pen, send, receive);
      pen.lineWidth = 1;
    }
    drawArrow(pen, send, receive) {
      const middle = (this.laneHeight - GAP) / 2, limit = (x) => Math.min(Math.max(x, -1e5), 1e5);
      const [fromX, fromY] = [limit(this.x(this.data.entry[send])), this.y(this.laneOf(send)) + middle];
      const [toX, toY] = [limit(this.x(this.data.exit[receive])), this.y(this.laneOf(receive)) + middle];
      const angle = Math.atan2(toY - fromY, toX - fromX);
      const stroke = (style, width) => {
        pen.strokeStyle = style;
        pen.lineWidth = width;
        pen.beginPath();
        pen.moveTo(fromX, fromY);
        pen.lineTo(toX, toY);
        for (const side of [-1, 1]) {
          pen.moveTo(toX, toY);
          pen.lineTo(toX - 10 * Math.cos(angle + side * 0.4), toY - 10 * Math.sin(angle + side * 0.4));
        }
        pen.stroke();
      };
      stroke(this.ink.panel, 4);
      stroke(this.ink.ink, 1.6);
    }

    // ---- the table of the interval ----

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
    }
    tableOf(title, head, rows, names) {
      const row = (tag, cells) => element("tr", {}, ...cells.map((text, n) => element(tag, { textContent: text, className: n < names ? "name" : "" })));
      const table = element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((cells) => row("td", cells))));
      const wide = element("div", { className: "wide", tabIndex: 0 }, table);
      wide.setAttribute("role", "region");
      wide.setAttribute("aria-label", title);
      return element("div", { className: "block" }, element("h3", { textContent: title }), wide);
    }
  }

  for (const figure of document.querySelectorAll("figure.timeline")) {
    const text = figure.querySelector("script.calls").textContent;
    decode(text).then((data) => { figure.timeline = new Timeline(figure, data); }, (error) => {
      // The picture without a script stays.
      figure.append(element("p", { textContent: `This browser cannot show the calls one by one: ${error.message}` }));
    });
  }
})();
