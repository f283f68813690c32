// Arcs: tokens on one line.

import { KEY_HEIGHT, fitLabels, labelRow, lineMark, noteMark, overhang, scaleMarks } from "./marks.js";
import { added, directions, firstGenerated, isSame, lineMarks, linesOf, linked, nodesOf } from "./lines.js";

/** Lay out arcs: `at(node)` along the line, the `rise` of an arc per span, `base` and `bottom` of the labels. */
function arcPlaces({ head, width, height }, { tokens, ofRow }, lines) {
  const slots = tokens.map((token, i) => (token.virtual ? -2 : i + (i >= head.keys.length ? 1 : 0)));
  const first = Math.min(...slots, 0);
  const slotCount = Math.max(...slots, 0) - first + 1;
  const isTwoSided = Boolean(head.rowNode) && lines.some(({ key, row }) => key > ofRow(row) && key !== head.sinkKey);
  const angles = isTwoSided ? [0, 90] : [0, 45, 90];
  const margin = 26;
  const loose = fitLabels(tokens, (width - 2 * margin) / slotCount, angles);
  const left = margin + overhang(loose, (width - 2 * margin) / slotCount);
  const pitch = (width - margin - left) / slotCount;
  const labels = fitLabels(tokens, pitch, angles);
  const span = lines.reduce((most, { key, row }) => Math.max(most, Math.abs(slots[key] - slots[ofRow(row)])), 2) * pitch;
  const room = (height - labels.extent - KEY_HEIGHT - 40) / (isTwoSided ? 2 : 1);
  const tall = Math.min(span / 2, Math.max(isTwoSided ? 90 : 130, room - 22));
  const base = tall + 42;
  const band = isTwoSided ? labels.extent + 12 : 0;
  const bottom = isTwoSided ? base + band + tall + 22 : base + labels.extent + 12;
  return { at: (node) => left + (slots[node] - first + 0.5) * pitch, pitch, labels, isTwoSided, rise: tall / span, base, band, bottom };
}

function arcPoints(from, to, y, side, { rise, pitch }) {
  const high = (Math.abs(to - from) * rise * 4) / 3;
  if (from !== to) return [from, y, from, y - side * high, to, y - side * high, to, y];
  const [out, up] = [Math.min(0.92 * pitch, 28), 2.6 * Math.min(0.42 * pitch + 4, 13)];
  return [from, y, from - out, y - up, to + out, y - up, to, y];
}

/** Tokens on one line; edges to the right run above it, edges to the left below it. */
export function arcs(picture) {
  const { head, look, width, focus } = picture;
  const nodes = nodesOf(head);
  const lines = linesOf(picture);
  const places = arcPlaces(picture, nodes, lines);
  const { at, labels, isTwoSided, base, band, bottom } = places;
  const marks = lineMarks(picture, lines, (line) => {
    const [from, to] = [at(line.key), at(nodes.ofRow(line.row))];
    const isBelow = isTwoSided && from > to && line.key !== head.sinkKey;
    return arcPoints(from, to, isBelow ? base + band : base, isBelow ? -1 : 1, places);
  });
  const near = linked(lines);
  const y = isTwoSided ? base + band / 2 : base + 8 + (labels.angle ? 0 : labels.size / 2);
  const row = {
    place: (node) => [at(node), y],
    anchor: labels.angle && !isTwoSided ? "end" : "middle",
    isFocus: (node) => Boolean(focus) && isSame(nodes.place(node), focus),
    isLinked: (node) => near.keys.has(nodes.place(node).key) || near.rows.has(nodes.place(node).row),
    sign: "▲",
  };
  marks.push(...labelRow(picture, nodes.tokens, labels, row));
  marks.push(noteMark(look, 13, 12, isTwoSided ? `above: ${directions(focus)}` : directions(focus)));
  if (isTwoSided) marks.push(noteMark(look, 13, bottom - 4, focus ? "below: the same, from right to left" : "query ← key"));
  if (!head.rowNode) marks.push(noteMark(look, at(0) - 12, bottom + 2, "keys"), noteMark(look, at(head.keys.length) - 12, bottom + 2, "queries"));
  const born = firstGenerated(nodes.tokens);
  const border = born > 0 && (at(born - 1) + at(born)) / 2;
  if (born > 0) marks.push(lineMark(border, 24, border, bottom, look.muted, 1, { dash: [3, 3] }), noteMark(look, border + 5, 26, "generated"));
  const keyTop = bottom + (isTwoSided ? 20 : head.rowNode ? 10 : 22);
  marks.push(...scaleMarks(picture, 13, keyTop, true));
  const hit = (px, py) => {
    if (py < 0 || py > bottom + 10 || !nodes.tokens.length) return null;
    return nodes.place(nodes.tokens.reduce((best, _, node) => (Math.abs(at(node) - px) < Math.abs(at(best) - px) ? node : best), 0));
  };
  return { width, height: keyTop + KEY_HEIGHT, marks, hit, added: added(lines) };
}
