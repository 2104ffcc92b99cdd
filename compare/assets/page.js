// Draws the plots of the page from the data inside it. Nothing is loaded.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const dashes = [[], [7, 4], [2, 3], [10, 4, 2, 4], [4, 4], []];
  let plots = [];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (strategy) => css("--s" + data.strategies.indexOf(strategy) % 6);
  const fmt = (v) => v == null ? "–" : v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v >= 1 ? v.toFixed(2) : v.toPrecision(2);

  // A series of its own colour and its own dash: neither needs the other to be told apart.
  const series = (strategy, value) => ({
    label: strategy, stroke: colour(strategy), width: 2, dash: dashes[data.strategies.indexOf(strategy) % 6],
    points: { show: false }, spanGaps: true, value: (u, v) => value(v),
  });
  const axis = (label, extra) => Object.assign({
    label, labelSize: 16, labelGap: 2, labelFont: "12px system-ui", font: "12px system-ui", stroke: css("--muted"),
    grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 },
  }, extra);

  // The time of the fault is shaded.
  const shade = (from, to) => ({
    hooks: {
      drawClear: (u) => {
        if (from < 0) return; // the run ended before it
        const a = u.valToPos(from, "x", true), b = u.valToPos(Math.max(to, from), "x", true);
        u.ctx.save();
        u.ctx.fillStyle = css("--fault");
        u.ctx.fillRect(a, u.bbox.top, Math.max(b - a, 2), u.bbox.height);
        u.ctx.restore();
      },
    },
  });

  function draw(id, opts, columns) {
    const box = document.getElementById(id);
    if (!box || columns.length < 2) return;
    box.textContent = "";
    plots.push([box, new uPlot(Object.assign({
      width: box.clientWidth, height: 280, legend: { live: true, markers: { dash: (u, i) => u.series[i].dash && u.series[i].dash.length ? (u.series[i].dash[0] < 3 ? "dotted" : "dashed") : "solid" } }, cursor: { drag: { x: true, y: false } },
    }, opts), columns, box)]);
  }

  // The distribution: how many per cent of the orders took at most so long. Every strategy has times of its own, so
  // they are brought onto one axis.
  function distribution(id, curves) {
    const names = data.strategies.filter((s) => curves[s]);
    const xs = [...new Set(names.flatMap((s) => curves[s].map((v) => Math.max(v, 0.1))))].sort((a, b) => a - b);
    const columns = [xs].concat(names.map((s) => {
      const c = curves[s].map((v) => Math.max(v, 0.1));
      let i = -1;
      return xs.map((x) => {
        while (i + 1 < c.length && c[i + 1] <= x) i++;
        if (i < 0) return null;
        return i === c.length - 1 && x > c[i] ? null : 100 * data.at[i];
      });
    }));
    draw(id, {
      scales: { x: { time: false, distr: 3, log: 10 }, y: { range: [0, 100] } },
      axes: [
        axis("milliseconds (logarithmic)", { size: 34, grid: { stroke: css("--grid"), width: 1, filter: (u, vs) => vs.map((v) => /^0*[125]0*$/.test(String(+v.toPrecision(3)).replace(".", "")) ? v : null) }, values: (u, vs) => vs.map((v) => v == null || !/^[125]/.test(String(+v.toPrecision(1)).replace(/^0\.0*/, "")) ? "" : String(+v.toPrecision(1))) }),
        axis("% of orders"),
      ],
      series: [{ label: "ms", value: (u, v) => fmt(v) }].concat(names.map((s) => series(s, (v) => v == null ? "–" : v.toFixed(1) + " %"))),
    }, columns);
  }

  // Each count is drawn at the time it stands for: at a share of its interval.
  function overTime(id, fault, key, label, share, transform) {
    const step = fault.step / 1000;
    const n = Math.max(...fault.results.map((r) => r[key].length), 1);
    const xs = Array.from({ length: n }, (_, i) => +((i + share) * step).toFixed(3));
    draw(id, {
      plugins: [shade(fault.from / 1000, fault.to / 1000)],
      scales: { x: { time: false, range: (u, lo, hi) => [0, Math.max(hi, step)] }, y: { range: (u, lo, hi) => [Math.min(0, lo), Math.max(hi * 1.08, 1)] } },
      axes: [axis("seconds since the load began", { size: 34 }), axis(label, { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] })],
      series: [{ label: "s", value: (u, v) => v == null ? "–" : v.toFixed(1) }].concat(fault.results.map((r) => series(r.strategy, fmt))),
    }, [xs].concat(fault.results.map((r) => transform(xs.map((_, i) => r[key][i] || 0), step))));
  }

  function all() {
    plots.forEach(([, u]) => u.destroy());
    plots = [];
    for (const d of data.distributions) distribution(d.id, d.curves);
    for (const f of data.faults) {
      overTime(f.id + "-rate", f, "credited", "orders credited per second", 0.5, (v, step) => v.map((x) => x / step));
      overTime(f.id + "-open", f, "open", "orders without points", 1, (v) => v);
    }
    document.documentElement.dataset.drawn = plots.length;
  }

  all();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let pending;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => plots.forEach(([box, u]) => u.setSize({ width: box.clientWidth, height: 280 })));
  });
})();
