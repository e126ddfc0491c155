// Runs in the page of `zoom.rs`: zooms step by step around a place of the run, and tells the script's time for each frame.
const tell = (text) => console.log(`timeline: ${text}`);
(async () => {
  const began = performance.now(), figure = document.querySelector("figure.timeline");
  while (!figure.timeline) await new Promise((done) => setTimeout(done, 5));
  const { timeline } = figure;
  tell(`ready after ${(performance.now() - began).toFixed(0)} ms`);
  const around = timeline.data.span_ps * 0.37;
  for (let zoom = 1; zoom <= 1e6; zoom *= zoom >= 100 ? 10 : 2) {
    const frames = [];
    for (let frame = 0; frame < 20; frame++) {
      const half = timeline.data.span_ps / zoom / 2;
      timeline.show(around - half, around + half);
      const start = performance.now();
      timeline.draw();
      frames.push(performance.now() - start);
    }
    frames.sort((a, b) => a - b);
    tell(`zoom ${zoom}: ${frames[10].toFixed(1)} ms a frame, at most ${frames[19].toFixed(1)} ms`);
    await new Promise((done) => setTimeout(done, 30));
  }
  tell("end");
})();
