// Nodes: tokens at places of their own, such as those of a graph.

import { textWidth } from "../heads/texts.js";
import { KEY_HEIGHT, fitLabels, labelRow, noteMarks, rectMark, scaleMarks } from "./marks.js";
import { added, isSame, lineMarks, linesOf, linked, nodesOf } from "./lines.js";

const [TOP, SIDE] = [30, 50];

/** Fit places into a box with equal scales; y grows upwards. */
function fitted(tokens, width, height) {
  const places = tokens.flatMap(({ at }) => (at ? [at] : []));
  const span = [0, 1].map((axis) => {
    const values = places.map((at) => at[axis]);
    return [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  });
  const [wide, tall] = span.map(([low, high]) => (high > low ? high - low : 1));
  const unit = Math.min((width - 2 * SIDE) / wide, (height - TOP - 40) / tall);
  const middle = span.map(([low, high]) => (low + high) / 2);
  const lower = [middle[0] - wide / 2, middle[1] - tall / 2];
  return tokens.map(({ at }) => {
    const [x, y] = at ?? [lower[0], lower[1] - 0.08 * tall]; // a sink, below on the left
    return [width / 2 + (x - middle[0]) * unit, TOP + (height - TOP) / 2 - (y - middle[1]) * unit];
  });
}

/** Bend a line to the left of its way, so that an edge and its reverse stay apart; a loop stands above its node. */
function bow([x1, y1], [x2, y2], radius) {
  if (x1 === x2 && y1 === y2) return [x1, y1, x1 - 3 * radius, y1 - 5 * radius, x1 + 3 * radius, y1 - 5 * radius, x2, y2];
  const [dx, dy] = [0.15 * (y2 - y1), -0.15 * (x2 - x1)];
  return [x1, y1, x1 + (x2 - x1) / 3 + dx, y1 + (y2 - y1) / 3 + dy, x1 + (2 * (x2 - x1)) / 3 + dx, y1 + (2 * (y2 - y1)) / 3 + dy, x2, y2];
}

/** Leave out the labels that would lie on one before; those of the focus and its links come first. */
function withRoom(texts, places, order, size) {
  const written = [];
  const shown = Array(texts.length).fill("");
  for (const node of order) {
    if (!texts[node]) continue;
    const [x, y] = places[node];
    const half = textWidth(texts[node], size) / 2 + 2;
    if (written.some(([ox, oy, other]) => Math.abs(x - ox) < half + other && Math.abs(y - oy) < 1.2 * size)) continue;
    written.push([x, y, half]);
    shown[node] = texts[node];
  }
  return shown;
}

/** Tokens where the data has them: edges as lines, solid for what the focus reads and dashed for what reads it. */
export function nodes(picture) {
  const { head, look, width, height, focus } = picture;
  const all = nodesOf(head);
  const tall = Math.max(height - KEY_HEIGHT, 240);
  const places = fitted(all.tokens, width, tall);
  const radius = Math.max(2.5, Math.min(7, 90 / Math.sqrt(all.tokens.length + 1)));
  const lines = linesOf(picture);
  const marks = lineMarks(picture, lines, ({ key, row }) => bow(places[key], places[all.ofRow(row)], radius));
  const near = linked(lines);
  const isFocus = (node) => Boolean(focus) && isSame(all.place(node), focus);
  const isLinked = (node) => near.keys.has(all.place(node).key) || near.rows.has(all.place(node).row);
  places.forEach(([x, y], node) => {
    const stroke = isFocus(node) ? { stroke: look.accent, width: 2.5 } : { stroke: look.muted };
    marks.push(rectMark(x - radius, y - radius, 2 * radius, 2 * radius, { fill: look.paper, radius, ...stroke }));
  });
  const labels = fitLabels(all.tokens, Infinity, [0]);
  const under = places.map(([x, y]) => [x, y + radius + 9]);
  const rank = (node) => (isFocus(node) ? 0 : isLinked(node) ? 1 : 2);
  const order = places.map((_, node) => node).sort((a, b) => rank(a) - rank(b) || a - b);
  const texts = withRoom(labels.texts, under, order, labels.size);
  marks.push(...labelRow(picture, all.tokens, { ...labels, texts }, { place: (node) => under[node], anchor: "middle", isFocus, isLinked }));
  marks.push(...noteMarks(look, 12, width, focus ? "solid: what it reads; dashed: what reads it" : "point at a node: solid is what it reads, dashed what reads it"));
  marks.push(...scaleMarks(picture, 8, tall + 6, true));
  const hit = (px, py) => {
    const [node, distance] = places.reduce((best, [x, y], n) => (Math.hypot(px - x, py - y) < best[1] ? [n, Math.hypot(px - x, py - y)] : best), [-1, Infinity]);
    return distance <= radius + 6 ? all.place(node) : null;
  };
  return { width, height: tall + 6 + KEY_HEIGHT, marks, hit, added: added(lines) };
}
