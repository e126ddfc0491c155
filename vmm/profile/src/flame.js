// Zoom, search and the keyboard of a flame graph. No character in here needs escaping in XML: no less-than sign, no ampersand.
(function () {
  "use strict";
  const svg = document.currentScript.closest("svg");
  const part = (name) => svg.querySelector("." + name);
  const left = +svg.dataset.left, wide = +svg.dataset.wide;
  const details = part("details"), found = part("matches");
  const reset = part("reset"), search = part("search");
  const room = Math.floor((left + wide) / 7.3);
  const path = [];
  const frames = Array.from(svg.querySelectorAll("g.f"), (g) => {
    const frame = {
      g: g, rect: g.querySelector("rect"), text: g.querySelector("text"),
      x: +g.dataset.x, w: +g.dataset.w, d: +g.dataset.d,
      info: g.querySelector("title").textContent.split("\n"), children: [],
    };
    // Frames stand in depth-first order.
    frame.parent = frame.d > 0 ? path[frame.d - 1] : null;
    path[frame.d] = frame;
    if (frame.parent) frame.parent.children.push(frame);
    g.frame = frame;
    return frame;
  });
  const root = frames[0];
  let shown = root, chosen = root;

  const fit = (text, most) => {
    if (most >= text.length) return text;
    return most > 2 ? text.slice(0, most - 1) + "\u2026" : "";
  };
  const tell = (frame) => { details.textContent = fit(frame.info.join(" \u2013 "), room); };

  function zoom(frame) {
    shown = frame;
    const end = frame.x + frame.w;
    for (const f of frames) {
      const from = Math.max(f.x, frame.x), to = Math.min(f.x + f.w, end);
      const pixels = (to - from) / frame.w * wide;
      const visible = pixels > 0.05;
      f.g.style.display = visible ? "" : "none";
      if (!visible) continue;
      const x = left + (from - frame.x) / frame.w * wide;
      f.rect.setAttribute("x", x.toFixed(3));
      f.rect.setAttribute("width", pixels.toFixed(3));
      f.text.setAttribute("x", (x + 3).toFixed(3));
      f.text.textContent = fit(f.info[0], Math.floor((pixels - 6) / 7.3));
      f.g.classList.toggle("around", frame.d > f.d);
      f.g.classList.toggle("thin", 3 > pixels);
    }
    reset.classList.toggle("off", frame === root);
  }

  function choose(frame) {
    chosen.g.classList.remove("chosen");
    chosen = frame;
    chosen.g.classList.add("chosen");
    tell(frame);
    // A frame out of sight is brought into it.
    const inside = frame.x >= shown.x - 1e-9 ? shown.x + shown.w + 1e-9 >= frame.x + frame.w : false;
    if (frame.g.style.display === "none" || (shown.d > frame.d ? false : !inside)) zoom(frame);
  }

  function find(text) {
    const wanted = text.trim().toLowerCase();
    let sum = 0, upTo = -1;
    for (const f of frames) {
      const hit = wanted !== "" ? f.info[0].toLowerCase().includes(wanted) : false;
      f.g.classList.toggle("found", hit);
      // A frame within one that was counted is no more.
      if (hit) if (f.x + f.w > upTo + 1e-9) {
        sum += f.w;
        upTo = f.x + f.w;
      }
    }
    found.textContent = wanted === "" ? "" : "found " + (100 * sum / root.w).toFixed(2) + " %";
  }

  function clear() {
    search.value = "";
    find("");
    zoom(root);
    choose(root);
  }

  svg.addEventListener("click", (event) => {
    if (event.target.closest(".reset")) return clear();
    const g = event.target.closest("g.f");
    if (!g) return;
    zoom(g.frame);
    choose(g.frame);
    svg.focus({ preventScroll: true });
  });
  svg.addEventListener("mouseover", (event) => {
    const g = event.target.closest("g.f");
    tell(g ? g.frame : chosen);
  });
  search.addEventListener("input", () => find(search.value));
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === search;
    const siblings = chosen.parent ? chosen.parent.children : [chosen];
    const next = (step) => siblings[siblings.indexOf(chosen) + step];
    const widest = (list) => list.reduce((a, b) => (b.w > a.w ? b : a), list[0]);
    let to = null;
    if (event.key === "Escape") {
      clear();
      svg.focus({ preventScroll: true });
    } else if (typing) {
      return;
    } else if (event.key === "/") {
      search.focus();
    } else if (event.key === "Enter") {
      if (event.target.closest(".reset")) clear(); else zoom(chosen);
    } else if (event.key === "ArrowUp") {
      to = widest(chosen.children);
    } else if (event.key === "ArrowDown") {
      to = chosen.parent;
    } else if (event.key === "ArrowLeft") {
      to = next(-1);
    } else if (event.key === "ArrowRight") {
      to = next(1);
    } else {
      return;
    }
    if (to) choose(to);
    event.preventDefault();
  });

  svg.classList.add("live");
  zoom(root);
  choose(root);
})();
