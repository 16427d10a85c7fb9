"use strict";
// Engines, verifier, trainer and publish of a round over time. Heights are pixels: the y axis counts them from the top.
const GAP = 12;
const LANES = { trainer: 30, verifier: 12, publish: 12, evaluation: 12 };

class Chart {
  constructor(narrow) {
    this.narrow = narrow;
    this.top = 0;
    this.bars = new Map(); // one trace for each style of bar
    this.extra = [];
    this.ticks = [];
    this.shapes = [];
    this.annotations = [];
  }

  label(text, height) {
    this.ticks.push([this.top + height / 2, text]);
  }

  bar(style, start, end, y, height, fill, hover) {
    if (!this.bars.has(style)) {
      this.bars.set(style, { type: "bar", orientation: "h", base: [], x: [], y: [], width: [], marker: { color: [], line: { width: 0 } }, hovertext: [], hovertemplate: "%{hovertext}<extra></extra>" });
    }
    const trace = this.bars.get(style);
    trace.base.push(start);
    trace.x.push(Math.max(end - start, 1e-4));
    trace.y.push(y + height / 2);
    trace.width.push(height);
    trace.marker.color.push(fill);
    trace.hovertext.push(hover);
  }

  engine(engine, colors, slot) {
    const height = engine.bars ? engine.slots * slot : 90;
    this.label(engine.name, height);
    this.shapes.push({ type: "rect", layer: "below", xref: "paper", x0: 0, x1: 1, y0: this.top, y1: this.top + height, line: { width: 0 }, fillcolor: color("soft") });
    for (const [start, end, lane, order, name, tokens, fate] of engine.bars || []) {
      const hover = `${name}<br>${engine.name}, slot ${lane}<br>${range(start, end)}<br>${tokens === null ? fate : `${tokens} tokens, ${fate}`}`;
      this.bar("request", start, end, this.top + lane * slot, slot - (slot > 3 ? 1 : slot > 2 ? 0.4 : 0), order < 0 ? color("eval") : colors[order] || colors[0], hover);
    }
    if (engine.steps) this.occupancy(engine, height);
    this.top += height + GAP;
  }

  occupancy(engine, height) {
    const base = this.top + height;
    const most = Math.max(1, engine.slots);
    const y = engine.steps.map(([, count]) => base - (height * count) / most);
    const x = engine.steps.map(([moment]) => moment);
    const floor = { type: "scatter", mode: "lines", line: { width: 0, shape: "hv" }, hoverinfo: "skip" };
    this.extra.push({ ...floor, x, y: x.map(() => base) });
    this.extra.push({
      ...floor, x, y, fill: "tonexty", fillcolor: color("rollout"), hoverinfo: "text",
      hovertext: engine.steps.map(([moment, count]) => `${engine.name}: ${count} of ${engine.slots} in flight at ${moment.toFixed(1)} s`),
    });
  }

  verifier(bars) {
    if (!bars.length) return;
    this.label("verifier", LANES.verifier);
    for (const [start, end] of bars) this.bar("verify", start, end, this.top, LANES.verifier, color("verify"), `verifier<br>${range(start, end)}`);
    this.top += LANES.verifier + GAP;
  }

  trainer(bars) {
    this.label("trainer", LANES.trainer);
    const fills = [color("train"), color("train-alt")];
    for (const [start, end, name, update, group] of bars) {
      const fill = name === "wait" ? color("wait") : name === "finish" ? color("step") : fills[update % 2];
      const what = name === "wait" ? "trainer waits" : name === "finish" ? `optimizer step, update ${update}` : `accumulate ${group}, update ${update}`;
      this.bar(name === "wait" ? "wait" : "train", start, end, this.top, LANES.trainer, fill, `${what}<br>${range(start, end)}`);
    }
    this.top += LANES.trainer + GAP;
  }

  publish(bars) {
    if (!bars.length) return;
    this.label("publish", LANES.publish);
    for (const [start, end, phase] of bars) this.bar("publish", start, end, this.top, LANES.publish, color("publish"), `publish: ${phase}<br>${range(start, end)}`);
    this.top += LANES.publish + GAP;
  }

  evaluation(bars) {
    if (!bars.length) return;
    this.label("evaluation", LANES.evaluation);
    for (const [start, end, name] of bars) this.bar("evaluation", start, end, this.top, LANES.evaluation, color("eval"), `${name}<br>${range(start, end)}`);
    this.top += LANES.evaluation + GAP;
  }

  markers(markers, from, span) {
    const levels = []; // right edge of the last text on each level, in seconds
    const width = span * (this.narrow ? 0.42 : 0.15);
    markers.forEach(([moment, label]) => {
      let level = levels.findIndex((edge) => edge <= moment);
      if (level < 0) level = levels.length;
      const atRight = moment > span * (this.narrow ? 0.6 : 0.86);
      levels[level] = atRight ? Infinity : moment + width;
      const y0 = from - 6 - level * 15;
      this.shapes.push({ type: "line", x0: moment, x1: moment, y0, y1: this.top - GAP, line: { color: color("ink"), width: 1, dash: "dot" } });
      this.annotations.push({
        x: moment, y: y0, text: `${label} ${moment.toFixed(1)} s`, showarrow: false, xanchor: atRight ? "right" : "left",
        yanchor: "middle", xshift: atRight ? -4 : 4, font: { size: 11, color: color("ink") }, bgcolor: color("card"), borderpad: 0,
      });
    });
  }

  title(text) {
    this.annotations.push({ xref: "paper", x: 0, y: this.top + 8, text: `<b>${text}</b>`, showarrow: false, xanchor: "left", yanchor: "middle", font: { size: 14, color: color("ink") } });
    this.top += 26;
  }

  round(chart, span) {
    const head = 15 * levelsNeeded(chart.markers, span, this.narrow) + 6;
    if (chart.title) this.title(chart.title);
    this.top += head;
    const from = this.top;
    const colors = groupColors(chart.orders);
    const slots = chart.engines.reduce((sum, engine) => sum + engine.slots, 0);
    const slot = Math.max(1.4, Math.min(8, 310 / slots)); // pixels
    chart.engines.forEach((engine) => this.engine(engine, colors, slot));
    this.verifier(chart.verifier);
    this.trainer(chart.trainer);
    this.publish(chart.publish);
    this.evaluation(chart.evaluation);
    this.markers(chart.markers, from, span);
    if (chart.title) this.top += 14;
  }

  figure(span) {
    const height = this.top + 48;
    return {
      data: [...this.bars.values(), ...this.extra],
      layout: {
        height, barmode: "overlay", margin: { l: this.narrow ? 64 : 76, r: 10, t: 4, b: 44 }, dragmode: this.narrow ? false : "zoom",
        xaxis: { range: [0, span], title: { text: "seconds since the round's start", standoff: 8 }, zeroline: false },
        yaxis: { range: [this.top, 0], tickvals: this.ticks.map(([y]) => y), ticktext: this.ticks.map(([, text]) => text), showgrid: false, zeroline: false, fixedrange: true, automargin: true },
        shapes: this.shapes, annotations: this.annotations,
      },
    };
  }
}

function range(start, end) {
  return `${start.toFixed(2)}–${end.toFixed(2)} s (${(end - start).toFixed(2)} s)`;
}

function levelsNeeded(markers, span, narrow) {
  const probe = new Chart(narrow);
  probe.markers(markers, 0, span);
  const ys = probe.annotations.map((note) => -note.y);
  return ys.length ? Math.round((Math.max(...ys) - 6) / 15) + 1 : 0;
}

(function () {
  if (!DATA.charts || !DATA.charts.length) return;
  const select = document.getElementById("round-select");
  const narrow = () => innerWidth < 620;
  const shown = () => (DATA.compare ? DATA.charts : [DATA.charts[select.selectedIndex]]);
  if (select) {
    options(select, DATA.charts.map((chart) => [chart.round, String(chart.round)]));
    const whole = DATA.charts.map((chart) => DATA.rounds.some((row) => row.round === chart.round && row.is_finished));
    select.selectedIndex = whole.includes(true) ? whole.lastIndexOf(true) : 0;
  }
  draw("gantt", () => {
    const charts = shown();
    const span = 1.01 * Math.max(...charts.map((chart) => chart.end));
    const chart = new Chart(narrow());
    charts.forEach((entry) => chart.round(entry, span));
    return chart.figure(span);
  });
  if (!select) return;
  const repaint = DRAWINGS[DRAWINGS.length - 1];
  const buttons = ["round-prev", "round-next"].map((id) => document.getElementById(id));
  const refresh = () => {
    buttons[0].disabled = select.selectedIndex === 0;
    buttons[1].disabled = select.selectedIndex === DATA.charts.length - 1;
    const bars = shown()[0].engines.some((engine) => engine.bars);
    const what = bars ? "One bar per request on its engine slot" : "Requests in flight on each engine";
    const some = DATA.charts.length < DATA.rounds.length ? ` ${DATA.charts.length} of ${DATA.rounds.length} rounds are in this page.` : "";
    const engines = shown()[0].engines.length ? `${what}; below, what the trainer did meanwhile.` : "What the trainer did.";
    document.getElementById("gantt-note").textContent = engines + some;
    repaint();
  };
  buttons.forEach((button, index) => button.addEventListener("click", () => { select.selectedIndex += index ? 1 : -1; refresh(); }));
  select.addEventListener("change", refresh);
  refresh();
})();
