"use strict";
// Reward, waiting ratio, log-prob gap and response lengths, round by round.
(function () {
  if (!DATA.rounds || !DATA.rounds.length) return;
  const finished = DATA.rounds.filter((row) => row.is_finished);
  const rows = finished.length ? finished : DATA.rounds; // half a round would bend the curves
  const numbers = rows.map((row) => row.round);
  const column = (name, scale = 1) => rows.map((row) => (row[name] === null ? null : row[name] * scale));
  const mode = numbers.length > 40 ? "lines" : "lines+markers";
  const step = Math.max(1, Math.ceil(numbers.length / 10));
  const byRound = { title: { text: "round", standoff: 6 }, showgrid: false, dtick: step, tick0: numbers[0], zeroline: false };

  function line(name, role, label, extra = {}, scale = 1) {
    return {
      type: "scatter", mode, x: numbers, y: column(name, scale), name: label,
      line: { color: color(role), width: 2.25, ...(extra.line || {}) }, marker: { size: 6, color: color(role) },
      hovertemplate: `round %{x}<br>${label} %{y:.3~g}${scale === 100 ? " %" : ""}<extra></extra>`,
    };
  }

  draw("reward", () => {
    const edge = { type: "scatter", mode: "lines", x: numbers, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    const band = [
      { ...edge, y: column("reward_trained_p25") },
      { ...edge, y: column("reward_trained_p75"), fill: "tonexty", fillcolor: color("reward-band") },
    ];
    return { data: [...band, line("reward_mean", "reward", "reward")], layout: { xaxis: byRound, yaxis: { rangemode: "tozero" } } };
  });

  draw("waiting", () => ({
    data: [
      line("waiting_ratio", "wait", "waiting ratio", {}, 100),
      line("waiting_ratio_first", "muted", "first dispatch share", { line: { dash: "dot", width: 1.5 } }, 100),
    ],
    layout: { xaxis: byRound, yaxis: { rangemode: "tozero", ticksuffix: " %" }, showlegend: true },
  }));

  draw("gap", () => {
    const limit = DATA.gap_limit;
    const shapes = limit === null ? [] : [
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit, line: { color: color("bad"), width: 1.5, dash: "dash" } },
    ];
    const annotations = limit === null ? [] : [
      { xref: "paper", x: 1, xanchor: "right", y: limit, yanchor: "bottom", text: `limit ${limit}`, showarrow: false, font: { color: color("bad") } },
    ];
    const top = Math.max(limit || 0, ...column("logprob_gap_max").map((value) => value || 0)) * 1.15 || 1;
    return { data: [line("logprob_gap_max", "publish", "gap")], layout: { xaxis: byRound, yaxis: { range: [0, top] }, shapes, annotations } };
  });

  draw("evals", () => {
    const x = DATA.evals.map((row) => row.version);
    const of = (name) => DATA.evals.map((row) => (row[name] === null ? null : row[name] * 100));
    const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    const band = [{ ...edge, y: of("low") }, { ...edge, y: of("high"), fill: "tonexty", fillcolor: color("eval-band") }];
    const points = {
      type: "scatter", mode: "lines+markers", x, y: of("accuracy"), line: { color: color("eval"), width: 2.25 }, marker: { size: 6, color: color("eval") },
      hovertemplate: "version %{x}<br>accuracy %{y:.1f} %<extra></extra>",
    };
    const versions = { title: { text: "weight version", standoff: 6 }, showgrid: false, zeroline: false };
    return { data: [...band, points], layout: { xaxis: versions, yaxis: { rangemode: "tozero", ticksuffix: " %" } } };
  });

  function span(rounds) {
    return rounds.length > 1 ? `rounds ${rounds[0]}–${rounds[rounds.length - 1]}` : `round ${rounds[0]}`;
  }

  draw("lengths", () => {
    const longest = Math.max(1, ...DATA.lengths.map((part) => part.values.reduce((most, value) => Math.max(most, value), 0)));
    const size = Math.max(1, Math.ceil(longest / 32));
    const roles = DATA.lengths.length > 1 ? ["muted", "rollout"] : ["rollout"];
    const data = DATA.lengths.map((part, index) => ({
      type: "histogram", x: part.values, name: span(part.rounds), histnorm: "percent", opacity: 0.62,
      xbins: { start: 0, end: longest + size, size }, marker: { color: color(roles[index]) },
      hovertemplate: `${span(part.rounds)}<br>%{x} tokens<br>%{y:.1f} %<extra></extra>`,
    }));
    return {
      data,
      layout: { barmode: "overlay", bargap: 0.06, showlegend: true, xaxis: { title: { text: "tokens", standoff: 6 }, showgrid: false }, yaxis: { ticksuffix: " %" } },
    };
  });
})();
