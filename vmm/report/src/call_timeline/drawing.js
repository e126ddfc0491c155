// Drawing of the timeline: only the visible part is drawn, and what takes less than a pixel is summed up in the pixel.

// Classes of a call's time: five groups of functions, waiting for other ranks, and what the reader has not chosen.
const WAITING = 5, OTHER = 6, CLASSES = 7;
// Pixels: height of the axis, width of the names, gap between lanes.
const AXIS = 42, NAMES = 78, GAP = 3;
// Cells of the whole run, and the number of calls from which on views are made of cells.
const CELLS = 8192, CELLS_FROM = 100000;
const MOST_LABELS = 2000, MOST_TICKS = 100;

// Returns zeros for the sums of so many pixels or cells.
const sums = (count, Type) => ({ shares: new Type(count * CLASSES), longest: new Type(count), longestClass: new Uint8Array(count) });

const drawing = {
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
  },
  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  },
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
  },
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
  },
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
  },
  // Returns a lane's calls of the whole run, summed up by cells.
  cellsOf(lane) {
    if (!this.cells[lane]) {
      const cells = { ...sums(CELLS, Float32Array), labels: [] };
      this.scan(lane, 0, this.data.span_ps, CELLS, cells, cells.labels);
      this.cells[lane] = cells;
    }
    return this.cells[lane];
  },
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
  },
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
  },
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
  },
  // Returns black or white, whichever stands out from a class's colour.
  labelInk(part) {
    const linear = (value) => (value <= 0.04 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => sum + weight * linear((this.colours[part] >> (8 * n) & 255) / 255), 0);
    return light > 0.179 ? "#000" : "#fff";
  },
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
  },
  drawAxis(pen, wide) {
    pen.fillStyle = this.ink.panel;
    pen.fillRect(0, 0, wide, AXIS - 2);
    const least = (this.to - this.from) / this.plot * 130, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= least);
    const since = this.data.from_ps;
    pen.strokeStyle = this.ink.line;
    pen.fillStyle = this.ink.soft;
    const begin = Math.ceil((since + this.from) / step) * step;
    // Numbers of a damaged trace may be so large that a step changes nothing.
    for (let n = 0, at = begin; at <= since + this.to && n < MOST_TICKS; n++, at = begin + n * step) {
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
  },
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
  },
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
  },
};
