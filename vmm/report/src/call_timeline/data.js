// The calls of a page's timeline: decoding, and numbers as text. `encode.rs` describes the format.
// Times are picoseconds since the program's first entry into MPI.

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

// Returns the first index from start to end of which `is` holds, which holds for all later ones, too.
const first = (start, end, is) => {
  while (start < end) {
    const middle = (start + end) >> 1;
    if (is(middle)) end = middle; else start = middle + 1;
  }
  return start;
};
