// Sorts a table where the head of a column is pressed: once descending (names: ascending), again the other way round. Rows of a
// body stay in their body, so that groups and sums stay where they are. The page is XML, too: this script has no character
// that XML would need escaped.
for (const table of document.querySelectorAll("table.sortable")) {
  const units = { ps: 1e-12, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1 };
  const steps = ["", "k", "M", "G", "T", "P", "E"];
  // "1.23 M", "4.5 KiB", "6.7 us", "8.9 %", "1,234" and "1.2e-3" as numbers; null for anything else.
  const number = (text) => {
    const found = text.trim().match(/^(-?[0-9][0-9,]*[.]?[0-9]*(?:e[+-]?[0-9]+)?) *([^0-9]*)$/);
    if (!found) return null;
    const value = Number(found[1].replaceAll(",", ""));
    const unit = found[2].trim();
    if (unit in units) return value * units[unit];
    const step = Math.max(0, steps.indexOf(unit.charAt(0).replace("K", "k")));
    return value * (unit.startsWith("i", 1) ? 1024 : 1000) ** step;
  };
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const name = head.classList.contains("name");
      const before = head.getAttribute("aria-sort");
      const up = before ? before === "descending" : name;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      for (const body of table.tBodies) {
        const rows = [...body.rows].map((row) => {
          const text = row.cells[column].textContent;
          return { row: row, text: text, value: number(text) };
        });
        rows.sort((a, b) => {
          if (a.value !== null ? b.value !== null : false) return up ? a.value - b.value : b.value - a.value;
          // Numbers stand before names and before what is not known, whichever way they are sorted.
          if (a.value !== null || b.value !== null) return a.value !== null ? -1 : 1;
          return up ? a.text.localeCompare(b.text, "en", { numeric: true }) : b.text.localeCompare(a.text, "en", { numeric: true });
        });
        body.append(...rows.map((entry) => entry.row));
      }
    });
  });
}
