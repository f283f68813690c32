// Nodes: tokens at places of their own, such as those of a graph.

import { indexOf } from "../heads/readings.js";
import { textWidth } from "../heads/texts.js";
import { KEY_HEIGHT, fitLabels, labelRow, noteMarks, rectMark, scaleMarks } from "./marks.js";
import { labelPlaces } from "./rooms.js";
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
  const unit = Math.min((width - 2 * SIDE) / wide, (height - TOP - 52) / tall);
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

const MOST_COMPARED = 100;

/** How far a place usually is from the next: the median of some. */
function usualGap(places) {
  const step = Math.ceil(places.length / MOST_COMPARED);
  const toNext = ([x, y]) => places.reduce((least, [u, v]) => Math.min(least, (u - x) ** 2 + (v - y) ** 2 || Infinity), Infinity);
  const gaps = places.filter((_, n) => n % step === 0).map(toNext).sort((a, b) => a - b);
  return Math.sqrt(gaps[gaps.length >> 1] ?? Infinity);
}

/** Tokens where the data has them: edges as lines, solid for what the focus reads and dashed for what reads it. */
export function nodes(picture) {
  const { head, look, width, height, focus } = picture;
  const all = nodesOf(head);
  const tall = Math.max(height - KEY_HEIGHT, 240);
  const places = fitted(all.tokens, width, tall);
  const radius = Math.max(2.5, Math.min(7, 90 / Math.sqrt(places.length + 1), 0.25 * usualGap(places)));
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
  const order = [...all.tokens.keys()];
  const sizes = labels.texts.map((text) => [text && textWidth(text, labels.size, true) + 4, 1.15 * labels.size]);
  const loops = [...picture.chosen.edges].filter((e) => all.ofRow(indexOf(head).row[e]) === head.key[e]).map((e) => head.key[e]);
  const first = [...order.filter(isFocus), ...order.filter((node) => !isFocus(node) && isLinked(node))];
  const rooms = labelPlaces({ places, sizes, radius, loops, first, frame: [0, 24, width, tall] });
  const texts = labels.texts.map((text, node) => (rooms[node] ? text : ""));
  const place = (node) => rooms[node] ?? [places[node][0], places[node][1] + radius + 9];
  marks.push(...labelRow(picture, all.tokens, { ...labels, texts }, { place, anchor: "middle", isFocus, isLinked, halo: picture.look.paper }));
  marks.push(...noteMarks(look, 12, width, focus ? "solid: what it reads; dashed: what reads it" : "point at a node: solid is what it reads, dashed what reads it"));
  marks.push(...scaleMarks(picture, 8, tall + 6, true));
  const hit = (px, py) => {
    const [node, distance] = places.reduce((best, [x, y], n) => (Math.hypot(px - x, py - y) < best[1] ? [n, Math.hypot(px - x, py - y)] : best), [-1, Infinity]);
    return distance <= Math.max(radius + 6, 12) ? all.place(node) : null;
  };
  return { width, height: tall + 6 + KEY_HEIGHT, marks, hit, added: added(lines) };
}
