// Draws the tree of one round: depth to the right, the accepted path as one straight line on top.

import { svg } from "./svg.js";
import { visible } from "./run.js";

const ROW = 34; // px from one row to the next
const HEIGHT = 24; // of a node
const GAP = 28; // between two depths
const PADDING = 9; // beside a node's text
const MARGIN = 8;
const LONGEST = 16; // characters of a label
const FONT = "13px ui-monospace, monospace";
const PERCENT_WIDTH = 30;

const ruler = document.createElement("canvas").getContext("2d");

/** An <svg> of `round`; `rootText` is the token that the tree hangs on. */
export function drawTree(round, rootText) {
  const nodes = nodesOf(round, rootText);
  const rows = placeRows(nodes);
  const right = placeColumns(nodes);
  for (const node of nodes) node.y = MARGIN + node.row * ROW;
  const [width, height] = [right + MARGIN, 2 * MARGIN + (rows - 1) * ROW + HEIGHT];
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  drawing.setAttribute("aria-label", summary(round));
  // Cut branches first, so that the path lies on top.
  const order = nodes.slice(1).sort((a, b) => (a.state === "cut" ? 0 : 1) - (b.state === "cut" ? 0 : 1));
  drawing.append(...order.map(drawEdge), ...nodes.map(drawNode));
  return drawing;
}

/** One sentence about what happened in a round. */
export function summary(round) {
  const last = visible(round.texts.at(-1));
  if (round.kind === "prefill") return `Prefill: reading the prompt gave the first token, “${last}”.`;
  if (round.kind === "plain") return `A plain step without a draft gave one token, “${last}”.`;
  const looked = round.tree.token_ids.length;
  const accepted = round.texts.length - 1;
  const kept = accepted
    ? `kept ${accepted}: “${round.texts.slice(0, -1).map(visible).join("")}”, then added “${last}” itself`
    : `kept none, and wrote “${last}” instead`;
  return `The target looked at ${looked} ${looked === 1 ? "node" : "nodes"} in one step, ${kept}.`;
}

function nodesOf(round, rootText) {
  const onPath = new Set(round.path);
  const nodes = [{ text: rootText, parent: null, state: "root", depth: 0, children: [] }];
  round.tree.token_ids.forEach((_, i) => {
    const parent = nodes[round.tree.parents[i]];
    const node = {
      text: round.tree.texts[i],
      parent,
      state: onPath.has(i + 1) ? "accepted" : "cut",
      depth: parent.depth + 1,
      probability: Math.exp(round.tree.log_probs[i]),
      children: [],
    };
    parent.children.push(node);
    nodes.push(node);
  });
  // The walk ended at the path's last node, where the target drew a token of its own.
  const end = nodes[round.path.at(-1)];
  const state = round.kind === "speculative" ? "bonus" : round.kind;
  const own = { text: round.texts.at(-1), parent: end, state, depth: end.depth + 1, children: [] };
  end.children.push(own);
  nodes.push(own);
  return nodes;
}

/** A parent shares the row of its first child, the path's child comes first; returns the number of rows. */
function placeRows(nodes) {
  const rank = { cut: 1 };
  let row = 0;
  // Not recursive: a chain can be as deep as the block is long.
  const waiting = [nodes[0]];
  while (waiting.length) {
    const node = waiting.pop();
    node.row = node.startsRow ? ++row : node.parent ? node.parent.row : 0;
    const children = [...node.children].sort((a, b) => (rank[a.state] ?? 0) - (rank[b.state] ?? 0));
    children.forEach((child, i) => (child.startsRow = i > 0));
    waiting.push(...children.reverse());
  }
  return row + 1;
}

/** Nodes of one depth start at one x; returns the right end of the last column. */
function placeColumns(nodes) {
  ruler.font = FONT;
  const widths = [];
  for (const node of nodes) {
    node.label = shortened(visible(node.text));
    const percent = node.probability === undefined ? 0 : PERCENT_WIDTH;
    node.width = Math.max(HEIGHT, ruler.measureText(node.label).width + 2 * PADDING + percent);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const lefts = [];
  let right = MARGIN;
  for (const width of widths) {
    lefts.push(right);
    right += width + GAP;
  }
  for (const node of nodes) node.x = lefts[node.depth];
  return right - GAP;
}

function drawEdge(node) {
  const { parent } = node;
  const [x1, y1] = [parent.x + parent.width, parent.y + HEIGHT / 2];
  const [x2, y2] = [node.x, node.y + HEIGHT / 2];
  const bend = (x2 - x1) / 2;
  return svg("path", {
    class: `edge ${node.state}`,
    d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
  });
}

function drawNode(node) {
  const { x, y, width } = node;
  const group = svg("g", { class: `node ${node.state}`, "data-state": node.state });
  group.append(svg("title", {}, description(node)));
  group.append(svg("rect", { x, y, width, height: HEIGHT, rx: node.state === "bonus" ? HEIGHT / 2 : 5 }));
  group.append(svg("text", { x: x + PADDING, y: y + HEIGHT / 2 + 4.5 }, node.label));
  if (node.probability !== undefined) {
    const attributes = { class: "percent", x: x + width - PADDING + 2, y: y + HEIGHT / 2 + 4 };
    group.append(svg("text", attributes, percentOf(node.probability)));
  }
  return group;
}

function description(node) {
  const text = `“${visible(node.text)}”`;
  const path = node.probability === undefined ? "" : `, path probability ${(100 * node.probability).toFixed(1)} %`;
  const said = {
    root: "the last token before this round",
    accepted: `accepted at depth ${node.depth}`,
    cut: `cut at depth ${node.depth}`,
    bonus: "the target’s own token",
    plain: "from a plain step",
    prefill: "from prefill",
  };
  return `${text}: ${said[node.state]}${path}`;
}

function percentOf(probability) {
  const percent = 100 * probability;
  return percent < 1 ? "<1" : String(Math.round(percent));
}

function shortened(label) {
  const characters = [...label];
  return characters.length <= LONGEST ? label : `${characters.slice(0, LONGEST - 1).join("")}…`;
}
