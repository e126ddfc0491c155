// The page's contents list, its sections, and the choice of a rank or a function, which all tables and pictures follow.
(() => {
  "use strict";
  const all = (what, inside = document) => Array.from(inside.querySelectorAll(what));
  const sections = all("section > details");

  // ---- sections open where a link leads, for print, and all together ----

  const open = () => {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    for (let at = target; at; at = at.parentElement) if (at.localName === "details") at.open = true;
    const inside = target ? target.querySelector(":scope > details") : null;
    if (inside) inside.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  document.querySelector(".contents").addEventListener("click", (event) => {
    // A second click on a link changes no address, but its section may have been closed.
    if (event.target.closest("a")) setTimeout(open);
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "open all sections";
  button.addEventListener("click", () => {
    const opens = sections.some((details) => !details.open);
    for (const details of sections) details.open = opens;
    button.textContent = opens ? "close all sections" : "open all sections";
  });
  if (sections.length > 0) document.querySelector(".contents").append(button);
  // ---- links and rows of tables lead to their interval in the timeline ----

  for (const row of all("tr[data-from]")) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "pick";
    made.title = "Show in the timeline";
    made.append(...row.cells[0].childNodes);
    row.cells[0].append(made);
  }
  document.addEventListener("click", (event) => {
    const from = event.target.closest("a, button") ? event.target.closest("[data-from]") : null;
    if (!from) return;
    document.dispatchEvent(new CustomEvent("nodescope-interval", { detail: { from: Number(from.dataset.from), to: Number(from.dataset.to) } }));
    document.getElementById("overview").scrollIntoView();
  });

  // ---- a source line and its instructions ----

  for (const twin of all(".twin")) {
    const light = (line) => { for (const row of all("tr[data-line]", twin)) row.classList.toggle("lit", row.dataset.line === line); };
    const lineOf = (event) => (event.target.closest("tr[data-line]") || { dataset: {} }).dataset.line;
    twin.addEventListener("mouseover", (event) => light(lineOf(event)));
    twin.addEventListener("focusin", (event) => light(lineOf(event)));
    twin.addEventListener("click", (event) => {
      const button = event.target.closest("button.line");
      const row = button ? all(`.asm tr[data-line="${lineOf(event)}"]`, twin)[0] : null;
      if (row) row.scrollIntoView({ block: "nearest" });
    });
  }

  // ---- a rank or a function ----

  const chosen = { rank: null, call: null };
  const bar = document.createElement("div");
  bar.className = "filters";
  bar.setAttribute("role", "status");
  bar.hidden = true;
  document.querySelector("main").prepend(bar);
  const columns = [];
  const value = (what, text) => (what === "rank" ? Number(text.replace("rank ", "")) : text.trim().replace(/^[0-9]+ /, ""));
  for (const table of all("table")) {
    const head = table.tHead ? Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent.trim()) : [];
    const rows = all("tbody tr", table);
    const [rank, call] = ["rank", "function"].map((name) => head.indexOf(name));
    // Rows such as "rank 3" of a window's tables tell their rank in their name.
    const named = rank >= 0 || call >= 0 ? [] : rows.filter((row) => row.cells.length > 0 ? /^rank [0-9]+$/.test(row.cells[0].textContent) : false);
    const functions = new Set(call >= 0 ? rows.map((row) => value("call", row.cells[call].textContent)) : []);
    columns.push({ rows, rank, call, named, functions });
    for (const [what, column] of [["rank", rank], ["call", call]]) {
      if (column >= 0) for (const row of rows) pick(row.cells[column], what);
    }
    for (const row of named) pick(row.cells[0], "rank");
  }

  // Makes a cell's text a button that chooses the rank or function.
  function pick(cell, what) {
    if (!cell || cell.textContent === "") return;
    const made = document.createElement("button");
    made.type = "button";
    made.className = "pick";
    made.dataset.pick = what;
    made.append(...cell.childNodes);
    cell.append(made);
  }
  document.addEventListener("click", (event) => {
    const made = event.target.closest(".pick[data-pick]");
    if (!made) return;
    const { pick: what } = made.dataset, to = value(what, made.textContent);
    choose(what, chosen[what] === to ? null : to);
  });
  document.addEventListener("nodescope-choose", (event) => {
    const { what, to } = event.detail;
    choose(what, chosen[what] === to ? null : to);
  });

  function choose(what, to) {
    chosen[what] = to;
    for (const { rows, rank, call, named, functions } of columns) {
      // Tables of MPI functions do not follow a function of the program's code.
      const follows = chosen.call === null ? false : functions.has(chosen.call);
      const isOther = (row, what, column) => column >= 0 ? chosen[what] !== null ? value(what, row.cells[column].textContent) !== chosen[what] : false : false;
      for (const row of rows) {
        const [byRank, byCall] = [isOther(row, "rank", rank), follows ? isOther(row, "call", call) : false];
        // A list of all ranks or all functions stays whole, so that another one can be chosen.
        const both = rank >= 0 ? call >= 0 : false;
        row.classList.toggle("out", both ? byRank || byCall : false);
        const [isRank, isCall] = [rank >= 0 ? chosen.rank !== null : false, follows];
        row.classList.toggle("chosen", both ? false : (isRank ? !byRank : false) || (isCall ? !byCall : false));
      }
      for (const row of named) row.classList.toggle("chosen", value("rank", row.cells[0].textContent) === chosen.rank);
    }
    for (const made of all(".pick[data-pick]")) made.setAttribute("aria-pressed", String(value(made.dataset.pick, made.textContent) === chosen[made.dataset.pick]));
    for (const svg of all("svg.flame")) flame(svg, what);
    show();
    document.dispatchEvent(new CustomEvent("nodescope-filter", { detail: { ...chosen } }));
  }

  // The flame graph zooms to the rank, and marks the function as its search does.
  function flame(svg, what) {
    if (what === "rank") {
      const begin = new RegExp(`^rank ${chosen.rank}( |\n|$)`);
      const frame = chosen.rank === null ? svg.querySelector("g.f") : all("g.f", svg).find((g) => begin.test(g.querySelector("title").textContent));
      // A click gives the flame graph the focus, which the reader has elsewhere.
      const focused = document.activeElement;
      if (frame) frame.querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
      if (focused) focused.focus({ preventScroll: true });
    } else {
      const search = svg.querySelector("input.search");
      search.value = chosen.call ?? "";
      search.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  function show() {
    bar.replaceChildren();
    bar.hidden = chosen.rank === null ? chosen.call === null : false;
    if (bar.hidden) return;
    bar.append("Shown:");
    for (const [what, name] of [["rank", `rank ${chosen.rank}`], ["call", chosen.call]]) {
      if (chosen[what] === null) continue;
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = `${name} \u00d7`;
      made.setAttribute("aria-label", `Show all, not only ${name}`);
      made.addEventListener("click", () => choose(what, null));
      bar.append(made);
    }
  }
  open();
})();
