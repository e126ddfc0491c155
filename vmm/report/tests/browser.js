// Runs in the page: looks for text that does not fit, drives the flame graph, and leaves what it found in an element.
// All that the page asks for has come, or failed, by then.
window.addEventListener("load", function () {
  const problems = [];
  const tell = (good, text) => { if (!good) problems.push(text); };
  const short = (node) => (node.textContent || "").trim().slice(0, 60);
  const shown = (node) => node.getClientRects().length > 0 && node.textContent.trim() !== "";
  const within = (a, b, by) => a.left >= b.left - by && a.right <= b.right + by && a.top >= b.top - by && a.bottom <= b.bottom + by;
  const apart = (a, b) => a.right <= b.left + 0.5 || b.right <= a.left + 0.5 || a.bottom <= b.top + 2 || b.bottom <= a.top + 2;
  const box = (node) => node.getBoundingClientRect();

  function texts(when) {
    for (const svg of document.querySelectorAll("svg")) {
      const outer = box(svg);
      const all = Array.from(svg.querySelectorAll("text")).filter(shown);
      for (const text of all) {
        tell(within(box(text), outer, 1), `${when}: text leaves its drawing: ${short(text)}`);
        const frame = text.closest("g.f");
        if (frame) tell(within(box(text), box(frame.querySelector("rect")), 1.5), `${when}: text leaves its frame: ${short(text)}`);
      }
      for (let a = 0; a < all.length; a++)
        for (let b = a + 1; b < all.length; b++)
          tell(apart(box(all[a]), box(all[b])), `${when}: texts overlap: ${short(all[a])} / ${short(all[b])}`);
    }
  }

  function page() {
    const root = document.documentElement;
    tell(root.scrollWidth <= window.innerWidth, `the page is ${root.scrollWidth} px wide`);
    for (const node of document.querySelectorAll("h1, h2, h3, p, dd, dt, li, summary"))
      if (shown(node)) tell(node.scrollWidth <= node.clientWidth + 1, `text is cut: ${short(node)}`);
    for (const cell of document.querySelectorAll("td:not(.name), th"))
      if (shown(cell)) tell(cell.scrollWidth <= cell.clientWidth + 1, `a cell is cut: ${short(cell)}`);
    const sections = Array.from(document.querySelectorAll("section"));
    for (const table of document.querySelectorAll("table"))
      if (shown(table)) tell(box(table.parentElement).right <= box(table.closest("section")).right + 1, "a table leaves its section");
    // On a phone, wide tables scroll on their own.
    for (const wide of document.querySelectorAll(".code .wide"))
      if (shown(wide) && window.innerWidth >= 1000) tell(wide.scrollWidth <= wide.clientWidth + 1, `a table is ${wide.scrollWidth} px wide: ${short(wide)}`);
    tell(sections.length > 0 || document.querySelector("svg.flame"), "nothing is shown");
    tell(performance.getEntriesByType("resource").length === 0, "the page loads something");
  }

  function flame(svg) {
    const frames = () => Array.from(svg.querySelectorAll("g.f"));
    const seen = () => frames().filter((g) => g.style.display !== "none");
    const named = (name) => frames().find((g) => g.querySelector("title").textContent.startsWith(name));
    const width = (g) => +g.querySelector("rect").getAttribute("width");
    const wide = +svg.dataset.wide;
    const all = seen().length;
    const press = (key, target) => (target || svg).dispatchEvent(new KeyboardEvent("keydown", { key: key, bubbles: true, cancelable: true }));
    const click = (g) => g.querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
    tell(svg.classList.contains("live"), "the script did not run");
    tell(Math.abs(width(frames()[0]) - wide) < 0.01, "the window is not as wide as the graph");

    // Mouse: the frame fills the graph, its owners stay, all else goes.
    const relax = named("relax(");
    const narrow = width(relax);
    click(relax);
    tell(Math.abs(width(relax) - wide) < 0.01 && narrow < wide / 2, "a click does not zoom");
    tell(seen().length < all && seen().length > 2, `after a click ${seen().length} of ${all} frames show`);
    texts("zoomed by the mouse");
    tell(svg.querySelector(".details").textContent.includes("cycles"), "details have no cycles");
    press("Escape");
    tell(seen().length === all && Math.abs(width(relax) - narrow) < 0.01, "Escape does not reset");
    click(relax);
    svg.querySelector(".reset rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
    tell(seen().length === all, "the button does not reset");

    // Keyboard: up to the widest frame above, sideways, and zoom.
    svg.focus();
    tell(document.activeElement === svg, "the graph takes no focus");
    press("ArrowUp");
    const first = svg.querySelector("g.chosen");
    tell(first.dataset.d === "1", "ArrowUp does not go up");
    press(first.dataset.x === "0.000000000" ? "ArrowRight" : "ArrowLeft");
    const second = svg.querySelector("g.chosen");
    tell(second !== first && second.dataset.d === "1", "arrows do not go sideways");
    press("Enter");
    tell(Math.abs(width(second) - wide) < 0.01, "Enter does not zoom");
    texts("zoomed by the keyboard");
    press("ArrowDown");
    tell(svg.querySelector("g.chosen").dataset.d === "0", "ArrowDown does not go down");
    press("Escape");
    tell(seen().length === all, "Escape does not reset after Enter");

    // Search.
    press("/");
    const input = svg.querySelector("input");
    tell(document.activeElement === input, "/ does not go to the search");
    input.value = "RELAX";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    const found = svg.querySelector(".matches").textContent;
    tell(svg.querySelectorAll("g.found").length >= 2, "the search finds nothing");
    texts("searched");
    press("Escape", input);
    tell(svg.querySelector(".matches").textContent === "", "Escape keeps the search");
    return found;
  }

  // Heads sort the rows of each group; sums stay. A button takes the focus, and the keyboard presses it.
  function sorts() {
    const tables = document.querySelectorAll("table.sortable");
    tell(tables.length > 3, "no table can be sorted");
    const table = tables[0];
    const column = Array.from(table.tHead.rows[0].cells).findIndex((head) => head.textContent === "CPI");
    const head = table.tHead.rows[0].cells[column];
    const button = head.querySelector("button");
    tell(button && button.tabIndex === 0, "the keyboard cannot sort");
    const values = () => Array.from(table.tBodies[0].rows).map((row) => Number(row.cells[column].textContent));
    const sums = table.tFoot.textContent;
    const others = Array.from(table.tBodies).slice(1).map((body) => body.rows.length).join();
    button.click();
    const down = values();
    tell(head.getAttribute("aria-sort") === "descending", "a head does not tell that its column sorts");
    tell(down.every((value, n) => n === 0 || down[n - 1] >= value), `not descending: ${down}`);
    button.click();
    const up = values();
    tell(up.length === down.length && up.every((value, n) => n === 0 || up[n - 1] <= value), `not ascending: ${up}`);
    tell(up.length < 2 || up.join() !== down.join(), "sorting changes nothing");
    tell(table.tFoot.textContent === sums && table.lastElementChild === table.tFoot, "the sums move");
    tell(Array.from(table.tBodies).slice(1).map((body) => body.rows.length).join() === others, "rows change their group");
    for (const other of tables) for (const press of other.querySelectorAll("th button")) press.click();
  }

  // Sections are closed at first, open by links and all together, and close again.
  function sections() {
    const all = Array.from(document.querySelectorAll("section > details"));
    const links = Array.from(document.querySelectorAll(".contents a"));
    tell(all.some((details) => !details.open), "every section is open at first");
    tell(links.length === document.querySelectorAll("section[id]").length, "the contents list does not have every section");
    for (const link of links) tell(document.getElementById(link.hash.slice(1)), `a link leads nowhere: ${short(link)}`);
    const button = document.querySelector(".contents button");
    button.click();
    tell(all.every((details) => details.open), "the button does not open all sections");
    page();
    button.click();
    tell(all.every((details) => !details.open), "the button does not close all sections");
    window.dispatchEvent(new Event("beforeprint"));
    tell(Array.from(document.querySelectorAll("details")).every((details) => details.open), "paper has closed sections");
    window.dispatchEvent(new Event("afterprint"));
    tell(all.every((details) => !details.open), "sections stay open after printing");
    button.click();
  }

  // The choice of a rank zooms the flame graph to the rank, and the choice of a function marks it there.
  function choices() {
    const svg = document.querySelector("svg.flame");
    if (!svg) return;
    const choose = (what, to) => document.dispatchEvent(new CustomEvent("nodescope-choose", { detail: { what, to } }));
    const frame = Array.from(svg.querySelectorAll("g.f")).find((g) => g.querySelector("title").textContent.startsWith("rank 1\n"));
    const width = () => +frame.querySelector("rect").getAttribute("width");
    const before = width(), button = document.querySelector(".contents button");
    button.focus();
    choose("rank", 1);
    tell(Math.abs(width() - +svg.dataset.wide) < 0.01, "the flame graph does not zoom to the rank");
    tell(document.activeElement === button, "a choice moves the focus");
    choose("rank", 1);
    tell(Math.abs(width() - before) < 0.01, "the flame graph stays at the rank");
    const name = document.querySelector(".code .pick[data-pick=call]").textContent;
    choose("call", name);
    tell(svg.querySelectorAll("g.found").length > 0, "the flame graph does not mark the function");
    tell(document.querySelectorAll("tr.chosen").length > 0, "no row is marked");
    choose("call", name);
    tell(svg.querySelectorAll("g.found").length === 0, "the flame graph keeps the mark");
  }

  // Everything that reacts to a click is reached by the keyboard and has a name.
  function controls() {
    for (const node of document.querySelectorAll("button, input, a[href], summary, canvas, svg[tabindex]")) {
      if (!shown(node) && node.localName !== "input") continue;
      const name = node.getAttribute("aria-label") || node.textContent.trim() || node.title;
      tell(name, `a control has no name: ${node.outerHTML.slice(0, 80)}`);
      tell(node.tabIndex >= 0, `the keyboard does not reach: ${short(node)}`);
    }
    for (const title of document.querySelectorAll("h1")) tell(document.querySelectorAll("h1").length === 1, "there are several titles");
    tell(document.documentElement.lang === "en" && document.title !== "", "the page has no language or title");
  }

  // Text stands out from its ground: 4.5 to 1, as WCAG 2.2 asks (1.4.3).
  function contrast() {
    const parse = (colour) => (colour.match(/[0-9.]+/g) || []).map(Number);
    const light = (rgb) => {
      const [r, g, b] = rgb.slice(0, 3).map((value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
      for (let at = node; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    let count = 0;
    const seen = new Set();
    for (const node of document.querySelectorAll("body *:not(svg):not(svg *):not(script):not(style)")) {
      const own = Array.from(node.childNodes).some((child) => child.nodeType === 3 && child.textContent.trim() !== "");
      if (!own || !shown(node)) continue;
      const [ink, paper] = [parse(getComputedStyle(node).color), ground(node)];
      const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05), what = `${node.localName}.${node.className}: ${ink} on ${paper}`;
      count += 1;
      if (ratio < 4.5 && !seen.has(what)) tell(false, `contrast ${ratio.toFixed(2)}: ${what}: ${short(node)}`);
      seen.add(what);
    }
    tell(count > 20, "no text was examined");
  }

  let found = "";
  try {
    tell(!window.errors || window.errors.length === 0, `errors: ${window.errors}`);
    if (document.querySelector("section")) {
      page();
      sections();
      controls();
      contrast();
      choices();
    }
    page();
    texts("first");
    if (document.querySelector("section")) sorts();
    for (const svg of document.querySelectorAll("svg.flame")) found = flame(svg);
    for (const svg of document.querySelectorAll("svg.flame")) svg.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    for (const details of document.querySelectorAll("details")) details.setAttribute("open", "open");
    page();
    tell(!window.errors || window.errors.length === 0, `errors: ${window.errors}`);
  } catch (error) {
    problems.push(String(error.stack || error));
  }
  const out = document.createElementNS("http://www.w3.org/1999/xhtml", "pre");
  out.setAttribute("id", "outcome");
  out.style.display = "none";
  out.textContent = JSON.stringify({ problems: problems, found: found, height: document.documentElement.scrollHeight });
  (document.body || document.documentElement).appendChild(out);
});
