"use strict";
// Shared by the other scripts: the page's data, colours by role, and redrawing when the system turns dark or light.
const DATA = JSON.parse(document.getElementById("data").textContent);
const DRAWINGS = [];

function color(role) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + role).trim();
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// The colour of a group: from dark to light by its order in the round.
function groupColors(count) {
  const stops = ["rollout-from", "rollout", "rollout-to"].map((role) => channels(color(role)));
  return Array.from({ length: count }, (_, order) => {
    const place = count > 1 ? (2 * order) / (count - 1) : 1;
    const low = Math.min(1, Math.floor(place));
    const mixed = stops[low].map((from, at) => Math.round(from + (stops[low + 1][at] - from) * (place - low)));
    return `rgb(${mixed.join(",")})`;
  });
}

function baseLayout(extra) {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), tickcolor: color("line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("muted") },
    margin: { l: 46, r: 14, t: 14, b: 40 }, hovermode: "closest", showlegend: false,
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink"), size: 12 }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: color("muted") } },
    ...extra,
    xaxis: { ...axis, ...(extra.xaxis || {}) },
    yaxis: { ...axis, ...(extra.yaxis || {}) },
  };
}

function draw(id, figure) {
  const element = document.getElementById(id);
  if (!element) return;
  const paint = () => {
    const { data, layout } = figure();
    Plotly.react(element, data, baseLayout(layout), { displayModeBar: false, responsive: true, scrollZoom: false });
  };
  DRAWINGS.push(paint);
  paint();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => DRAWINGS.forEach((paint) => paint()));

// A DOM element with text; model output only ever arrives here, as text.
function node(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function options(select, entries) {
  select.replaceChildren(...entries.map(([value, label]) => {
    const option = node("option", "", label);
    option.value = value;
    return option;
  }));
}
