// Stacked bars over the rounds of a run. One path a series: hundreds of rounds stay cheap.

import { svg } from "./svg.js";

const HEIGHT = 120;
const LEFT = 34; // room for the scale
const TOP = 8;
const BOTTOM = 18;
const WIDEST_BAR = 14;

/**
 * Bars of `series`, each { name, values } with one value a round, stacked in order; `mean` draws a line.
 * `selected` is a round's index, `onSelect` is told of clicks on another one.
 */
export function drawBars(host, { series, selected, mean = null, label, onSelect }) {
  const count = series[0].values.length;
  const width = Math.max(host.clientWidth, 160);
  const totals = series[0].values.map((_, i) => series.reduce((sum, one) => sum + one.values[i], 0));
  const top = niceCeiling(Math.max(...totals, 1));
  const pitch = Math.min((width - LEFT) / Math.max(count, 1), WIDEST_BAR);
  const scale = (HEIGHT - TOP - BOTTOM) / top;
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  drawing.setAttribute("aria-label", label);
  drawing.append(...gridLines(top, scale, width));
  const stacked = new Array(count).fill(0);
  for (const { name, values } of series) {
    drawing.append(svg("path", { class: `bar ${name}`, d: barPath(values, stacked, pitch, scale) }));
  }
  if (mean !== null) drawing.append(line("mean", LEFT, LEFT + pitch * count, HEIGHT - BOTTOM - mean * scale));
  if (count) drawing.append(...roundNumbers(count, pitch), marker(selected, pitch));
  drawing.addEventListener("click", (event) => {
    const index = Math.floor((event.clientX - drawing.getBoundingClientRect().left - LEFT) / pitch);
    if (index >= 0 && index < count) onSelect(index);
  });
  host.replaceChildren(drawing);
}

/** The bars of one series; `stacked` is what lies below them, and grows. */
function barPath(values, stacked, pitch, scale) {
  const width = pitch > 3 ? pitch - 1.5 : pitch;
  return values
    .map((value, i) => {
      const y = HEIGHT - BOTTOM - stacked[i] * scale;
      stacked[i] += value;
      return value ? `M${LEFT + i * pitch} ${y}h${width}v${-value * scale}h${-width}z` : "";
    })
    .join("");
}

function gridLines(top, scale, width) {
  return [0, top / 2, top].flatMap((value) => {
    const y = HEIGHT - BOTTOM - value * scale;
    const number = svg("text", { class: "scale", x: LEFT - 6, y: y + 4 }, String(value));
    return [line("grid", LEFT, width, y), number];
  });
}

function roundNumbers(count, pitch) {
  const last = svg("text", { class: "scale", x: LEFT + count * pitch, y: HEIGHT - 3 }, String(count - 1));
  const first = svg("text", { class: "scale start", x: LEFT, y: HEIGHT - 3 }, "round 0");
  return count * pitch > 90 ? [first, last] : [first];
}

function marker(index, pitch) {
  const [x, height] = [LEFT + index * pitch - 0.75, HEIGHT - TOP - BOTTOM + 2];
  return svg("rect", { class: "selected", x, y: TOP - 2, width: Math.max(pitch, 3), height });
}

function line(name, x1, x2, y) {
  return svg("line", { class: name, x1, x2, y1: y, y2: y });
}

/** The smallest of 1, 2, 4, 5, 8 times a power of ten that is not below `value`. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((candidate) => candidate >= value);
}
