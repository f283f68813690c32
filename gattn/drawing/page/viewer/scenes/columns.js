// Columns: keys on the left, queries on the right.

import { indexOf } from "../heads/readings.js";
import { KEY_HEIGHT, fitLabels, labelRow, lineMark, noteMark, scaleMarks } from "./marks.js";
import { added, directions, firstGenerated, lineMarks, linesOf, linked } from "./lines.js";

/** Lay out columns: the height of each key and row, and the ends of the lines. */
function columnPlaces({ head, width, height }) {
  const size = Math.max(head.keys.length, head.queries.length, 1);
  const pitch = Math.min(26, Math.max(17, (height - 90) / size), 1400 / size);
  const [onKeys, onRows] = [head.keys, head.queries].map((tokens) => fitLabels(tokens, pitch, [90], width * 0.3 - 24));
  const [left, right] = [onKeys.wide + 24, width - onRows.wide - 24];
  const spare = Math.max(0, right - left - 620) / 2;
  const shift = head.rowNode ? 0 : (head.keys.length - head.queries.length) / 2;
  const rowSlot = (row) => (head.rowNode?.[row] >= 0 ? head.rowNode[row] : row + Math.max(0, shift));
  const y = (slot) => 42 + (slot + 0.5) * pitch;
  const slotAt = (py) => Math.floor((py - 42) / pitch);
  return { onKeys, onRows, x0: left + spare, x1: right - spare, ofKey: (key) => y(key - Math.min(0, shift)), ofRow: (row) => y(rowSlot(row)), slotAt, bottom: 42 + size * pitch };
}

/** Keys in the left column, queries in the right one; in self-attention, a token has the same height in both. */
export function columns(picture) {
  const { head, look, width, focus } = picture;
  const { onKeys, onRows, x0, x1, ofKey, ofRow, slotAt, bottom } = columnPlaces(picture);
  const lines = linesOf(picture);
  const middle = (x0 + x1) / 2;
  const marks = lineMarks(picture, lines, ({ key, row }) => [x0, ofKey(key), middle, ofKey(key), middle, ofRow(row), x1, ofRow(row)]);
  const near = linked(lines);
  const onLeft = { place: (k) => [x0 - 8, ofKey(k)], anchor: "end", angle: 0, isFocus: (k) => focus?.key === k, isLinked: (k) => near.keys.has(k) };
  const onRight = { place: (r) => [x1 + 8, ofRow(r)], anchor: "start", angle: 0, isFocus: (r) => focus?.row === r, isLinked: (r) => near.rows.has(r) };
  marks.push(...labelRow(picture, head.keys, onKeys, onLeft), ...labelRow(picture, head.queries, onRows, onRight));
  marks.push(noteMark(look, x0, 30, "keys", "end"), noteMark(look, x1, 30, "queries"), noteMark(look, middle, 10, directions(focus), "middle"));
  const born = firstGenerated(head.queries);
  if (born > 0) {
    const border = (ofRow(born - 1) + ofRow(born)) / 2;
    marks.push(lineMark(head.rowNode ? 8 : x1, border, width - 8, border, look.muted, 1, { dash: [3, 3] }), noteMark(look, width - 8, border + 8, "generated", "end"));
  }
  marks.push(...scaleMarks(picture, 13, bottom + 14, true));
  const hit = (px, py) => {
    if (py < 42 || py > bottom) return null;
    const [tokens, of] = px > middle ? [head.queries, ofRow] : [head.keys, ofKey];
    const found = tokens.findIndex((_, i) => slotAt(of(i)) === slotAt(py));
    if (found < 0) return null;
    if (px > middle) return { row: found, key: head.rowNode ? head.rowNode[found] : -1 };
    return { key: found, row: head.rowNode ? indexOf(head).rowOf[found] : -1 };
  };
  return { width, height: bottom + 14 + KEY_HEIGHT, marks, hit, added: added(lines) };
}
