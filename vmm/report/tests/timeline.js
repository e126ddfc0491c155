// Runs in the page of `timeline.rs`: drives the timeline as a reader does, and leaves what it found in an element.
window.addEventListener("load", async () => {
  const problems = [];
  const tell = (good, text) => { if (!good) problems.push(text); };
  const US = 1e6, figure = document.querySelector("figure.timeline");
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  async function drive() {
    for (let turn = 0; turn < 100 && !figure.timeline; turn++) await pause(10);
    tell(figure.timeline, "the timeline does not come to life");
    const timeline = figure.timeline, { canvas } = timeline, middle = () => (timeline.from + timeline.to) / 2;
    const told = () => figure.querySelector(".told").textContent, tip = () => figure.querySelector(".tip");
    const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    const mouse = (type, x, y, more = {}) => {
      const box = canvas.getBoundingClientRect(), Kind = type === "wheel" ? WheelEvent : PointerEvent;
      canvas.dispatchEvent(new Kind(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, button: 0, pointerId: 1, pointerType: "mouse", ...more }));
    };
    canvas.setPointerCapture = () => {};
    const first = timeline.data.from_ps, target = 200052 * US - first;
    const lane = (rank) => timeline.y(rank) + timeline.laneHeight / 2;
    tell(timeline.from === 0 && timeline.to === timeline.data.span_ps, "the whole run is not shown first");
    tell(first === 100 * US, `the first call is at ${first}`);
    tell(timeline.data.lanes.map((lane) => lane.calls).join() === "4001,4001,4000", "the lanes have other calls than the trace");

    // By keyboard: to the message.
    canvas.focus();
    tell(document.activeElement === canvas, "the timeline takes no focus");
    for (let turn = 0; turn < 200 && timeline.to - timeline.from > 40 * US; turn++) {
      const off = (target - middle()) / (timeline.to - timeline.from);
      press(off > 0.15 ? "d" : off < -0.15 ? "a" : "w");
    }
    tell(timeline.to - timeline.from <= 40 * US && Math.abs(target - middle()) < 20 * US, "the keyboard does not zoom to the message");
    press("ArrowRight");
    tell(told() === "rank 0: MPI_Send; 5.000 us, from 0.200050000 s; to rank 1; 4.00 KiB sent; its message is received by rank 1, 10.00 us after the send began", `keyboard: ${told()}`);
    press("ArrowDown");
    tell(told() === "rank 1: MPI_Recv; 40.00 us, from 0.200020000 s; waited 30.00 us for other ranks; from rank 0; 4.00 KiB received; its message comes from rank 0, 10.00 us after the send began", `next lane: ${told()}`);
    press("Enter");
    tell(timeline.from === 199980 * US - first && timeline.to === 200100 * US - first, "Enter does not zoom to the call");
    press("ArrowLeft");
    tell(told().startsWith("rank 1: MPI_Barrier at program+0x1234; 10.00 us, from 0.200000000 s"), `call before: ${told()}`);
    press("Escape");
    tell(timeline.call === null && told().startsWith("Click a call"), "Escape does not clear");
    press("?");
    tell(!figure.querySelector(".keys").hidden, "? does not show the keys");
    press("?");
    tell(figure.querySelector(".keys").hidden, "? does not hide the keys");
    press("0");
    tell(timeline.from === 0 && timeline.to === timeline.data.span_ps, "0 does not show the whole run");

    // By wheel: to the message again. Without the focus, the wheel moves the page.
    const atTarget = () => timeline.x(target);
    canvas.blur();
    mouse("wheel", atTarget(), lane(1), { deltaY: -100 });
    tell(timeline.from === 0 && timeline.to === timeline.data.span_ps, "the wheel zooms without the focus");
    canvas.focus();
    timeline.show(target - 30000 * US, target + 10000 * US);
    const before = atTarget();
    mouse("wheel", before, lane(1), { deltaY: -100 });
    tell(Math.abs(atTarget() - before) < 0.5, "the time under the pointer moves");
    for (let turn = 0; turn < 100 && timeline.to - timeline.from > 60 * US; turn++) mouse("wheel", atTarget(), lane(1), { deltaY: -150 });
    mouse("pointermove", atTarget(), lane(1));
    tell(!tip().hidden && Array.from(tip().children, (line) => line.textContent).join("; ") === "rank 1: MPI_Recv; 40.00 us, from 0.200020000 s; waited 30.00 us for other ranks; from rank 0; 4.00 KiB received", `wheel: ${tip().textContent}`);
    mouse("pointermove", atTarget(), lane(2));
    tell(tip().textContent === "rank 2: outside MPI90.00 us, from 0.200010000 s", `tooltip outside MPI: ${tip().textContent}`);

    // What is drawn: waiting and receiving in the lane of rank 1, nothing in the lane of rank 2.
    timeline.show(200000 * US - first, 200100 * US - first);
    timeline.draw();
    const ratio = devicePixelRatio, pen = canvas.getContext("2d"), style = getComputedStyle(figure);
    const colour = (us, rank) => {
      const pixel = pen.getImageData(Math.round(timeline.x(us * US - first) * ratio), Math.round((timeline.y(rank) + timeline.laneHeight - 6) * ratio), 1, 1).data;
      return `#${Array.from(pixel.slice(0, 3), (value) => value.toString(16).padStart(2, "0")).join("")}`;
    };
    for (const [us, rank, name] of [[200045, 1, "waiting"], [200057, 1, "g0"], [200053, 0, "g0"], [200005, 0, "g2"], [200053, 2, "lane"]])
      tell(colour(us, rank) === style.getPropertyValue(`--${name}`).trim(), `rank ${rank} at ${us} us is ${colour(us, rank)}, not ${name}`);

    // A drag selects an interval, whose table has the sums of the parts of calls within the interval.
    mouse("pointerdown", timeline.x(200040 * US - first), lane(0));
    mouse("pointermove", timeline.x(200058 * US - first), lane(0));
    mouse("pointerup", timeline.x(200058 * US - first), lane(0));
    const exact = timeline.interval;
    tell(exact && Math.abs(exact.from - (200040 * US - first)) < 2 * US && Math.abs(exact.to - (200058 * US - first)) < 2 * US, "a drag selects no interval");
    document.dispatchEvent(new CustomEvent("nodescope-interval", { detail: { from: 200040 * US, to: 200060 * US } }));
    tell(timeline.from === 200040 * US - first && timeline.to === 200060 * US - first, "a link does not show its interval");
    const rows = (table) => Array.from(figure.querySelectorAll(".interval table")[table].tBodies[0].rows, (row) => Array.from(row.cells, (cell) => cell.textContent).join("|"));
    tell(rows(0).join(" ") === "MPI_Recv|-|1|20.00 us|33.3 %|10.00 us|0 B|4.00 KiB MPI_Send|-|1|5.000 us|8.3 %|0 s|4.00 KiB|0 B", `functions: ${rows(0).join(" ")}`);
    tell(rows(1)[1] === "rank 1|0 s|1|20.00 us|100.0 %|10.00 us|0 B|4.00 KiB" && rows(1)[2].startsWith("rank 2|20.00 us|0|"), `ranks: ${rows(1).join(" ")}`);

    // The choice of a rank and a function reaches the tables and the timeline.
    for (const details of document.querySelectorAll("details")) details.open = true;
    const titled = (title) => Array.from(document.querySelectorAll("figure.block")).find((block) => (block.querySelector("h3") || block).textContent.startsWith(title));
    const both = titled("By function and rank"), byRank = titled("By rank"), byFunction = titled("By function,");
    const shown = () => Array.from(both.querySelectorAll("tbody tr")).filter((row) => row.getClientRects().length > 0).map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`).sort().join(", ");
    const choose = (block, text) => Array.from(block.querySelectorAll(".pick")).find((button) => button.textContent === text).click();
    const all = shown();
    choose(byRank, "1");
    tell(shown() === "MPI_Barrier 1, MPI_Recv 1", `rows of rank 1: ${shown()}`);
    tell(rows(1).length === 1 && rows(1)[0].startsWith("rank 1|"), `interval of rank 1: ${rows(1).join(" ")}`);
    press("Escape");
    tell(byRank.querySelector("[aria-pressed=true]").textContent === "1", "the chosen rank is not marked");
    choose(byFunction, "MPI_Recv");
    tell(shown() === "MPI_Recv 1", `rows of MPI_Recv on rank 1: ${shown()}`);
    timeline.show(200000 * US - first, 200100 * US - first);
    timeline.draw();
    tell(colour(200057, 1) === style.getPropertyValue("--g0").trim() && colour(200053, 0) === style.getPropertyValue("--other").trim(), "the timeline does not show the choice");
    const bar = document.querySelector(".filters");
    tell(!bar.hidden && bar.textContent.includes("rank 1") && bar.textContent.includes("MPI_Recv"), `the bar says ${bar.textContent}`);
    for (const button of bar.querySelectorAll("button")) button.click();
    document.querySelector(".filters button")?.click();
    tell(bar.hidden && shown() === all, "the choice is not taken back");
    document.dispatchEvent(new CustomEvent("nodescope-choose", { detail: { what: "call", to: "relax" } }));
    tell(shown() === all && timeline.filter.call === null, "a function of the code hides MPI calls");
    document.dispatchEvent(new CustomEvent("nodescope-choose", { detail: { what: "call", to: "relax" } }));
    timeline.goTo(timeline.lanes[1].start);
    press("r");
    tell(bar.textContent.includes("rank 1"), "R does not choose the rank");
    press("r");
    tell(bar.hidden, "R does not take the choice back");

    // A window's section leads to the window in the timeline.
    document.querySelector("a[data-from]").click();
    tell(timeline.interval.from === 100000 * US - first && timeline.interval.to === 110000 * US - first, "the link shows another interval than the window");

    const root = document.documentElement;
    tell(root.scrollWidth <= window.innerWidth, `the page is ${root.scrollWidth} px wide`);
    tell(window.errors.length === 0, `errors: ${window.errors}`);
  }

  await drive().catch((error) => problems.push(String(error.stack || error)));
  const out = document.createElement("pre");
  out.id = "outcome";
  out.style.display = "none";
  out.textContent = JSON.stringify({ problems });
  document.body.append(out);
});
