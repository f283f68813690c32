// Matrix: rows are queries, columns are keys.

import { indexOf, readingsOf, strengthOf } from "../heads/readings.js";
import { hueOf, inkOn } from "./colours.js";
import { KEY_HEIGHT, fitLabels, labelRow, lineMark, noteMark, rectMark, scaleMarks, textMark } from "./marks.js";
import { firstGenerated } from "./lines.js";

/** Take the largest value of each block of rows and keys: {values, rows, columns, block}. */
export function blocksOf(head, chosen, weight, across) {
  const block = Math.max(1, Math.ceil(Math.max(head.keys.length, head.queries.length) / across));
  const [rows, columns] = [head.queries, head.keys].map((tokens) => Math.ceil(tokens.length / block));
  const values = new Float32Array(rows * columns).fill(NaN);
  const most = new Float32Array(rows * columns).fill(-Infinity);
  const strength = strengthOf(head, weight);
  const { row } = indexOf(head);
  for (const e of chosen.edges) {
    const at = Math.floor(row[e] / block) * columns + Math.floor(head.key[e] / block);
    if (strength(e) > most[at]) [most[at], values[at]] = [strength(e), head.values[weight][e]];
  }
  return { values, rows, columns, block };
}

const coloured = new WeakMap();

/** Take, in each cell, the value of the head with the largest: {values, hues, rows, columns, block}. */
function largestOf({ head, overlaid, weight, scale }) {
  const all = overlaid.map((one) => blocksOf({ ...one.head, keys: head.keys }, one.chosen, weight, 560));
  const [values, hues] = [all[0].values.slice(), Array(all[0].values.length).fill(overlaid[0].hue)];
  const size = (value) => (Number.isNaN(value) ? -1 : scale.place(value));
  all.slice(1).forEach((blocks, n) =>
    blocks.values.forEach((value, at) => {
      if (size(value) > size(values[at])) [values[at], hues[at]] = [value, overlaid[n + 1].hue];
    }),
  );
  return { ...all[0], values, hues };
}

/** Colour the cells of a matrix, once for each choice of edges. */
function cellsOf(picture) {
  const { head, chosen, overlaid, weight, scale, look } = picture;
  const key = `${weight} ${look.name} ${scale.low} ${scale.high}`;
  const slot = overlaid ?? chosen;
  if (coloured.get(slot)?.key !== key) {
    const blocks = overlaid ? largestOf(picture) : blocksOf(head, chosen, weight, 560);
    const pixels = new Uint8ClampedArray(4 * blocks.values.length);
    blocks.values.forEach((value, at) => {
      if (Number.isNaN(value)) return;
      const colour = overlaid ? hueOf(blocks.hues[at], value, scale, look) : scale.rgb(value, look);
      pixels.set([...colour, 255], 4 * at);
    });
    coloured.set(slot, { ...blocks, pixels, key });
  }
  return coloured.get(slot);
}

const MOST_ABOVE = 144;

/** Lay out a matrix: its corner, the size of a cell and of a token, and the labels that fit. */
function matrixPlaces({ head, width, height }, { rows, columns, block }) {
  const most = width * 0.32 - 38;
  const left = fitLabels(head.queries, 400 / Math.max(rows, 1), [90], most).wide + 38;
  const room = Math.min(width - left - 16, Math.max(height - 60, 320)) / Math.max(rows, columns, 1);
  const cell = room >= 3 ? Math.min(44, Math.floor(room)) : room;
  const step = cell / block;
  const [onRows, onKeys] = [fitLabels(head.queries, step, [90], most), fitLabels(head.keys, step, [0, 45, 90], MOST_ABOVE)];
  return { left, top: onKeys.extent + 34, cell, step, onRows, onKeys, wide: cell * columns, tall: cell * rows };
}

/** Write the value of each cell. */
function cellNumbers({ values, columns, pixels }, { left, top, cell }) {
  return Array.from(values, (value, at) => {
    if (Number.isNaN(value)) return null;
    const fixed = value.toFixed(2).replace("-", "−").replace(".00", "");
    const [x, y] = [left + ((at % columns) + 0.5) * cell, top + (Math.floor(at / columns) + 0.5) * cell];
    const label = Math.abs(value) >= 0.005 || value === 0 ? fixed : "<0.01";
    return textMark(x, y, label, inkOn([...pixels.subarray(4 * at, 4 * at + 3)]), { size: 10.5, anchor: "middle" });
  }).filter(Boolean);
}

/** Frame the row and the column of the focus, and mark where generated tokens begin. */
function matrixLines({ head, look, focus }, { left, top, step, wide, tall }) {
  const marks = [];
  const [row, key] = [firstGenerated(head.queries), firstGenerated(head.keys)];
  const [y, x] = [top + row * step, left + key * step];
  if (row > 0) marks.push(lineMark(left - 30, y, left + wide, y, look.accent, 1, { dash: [3, 3] }), noteMark(look, left + wide, y - 7, "generated below", "end"));
  if (key > 0) marks.push(lineMark(x, top - 20, x, top + tall, look.accent, 1, { dash: [3, 3] }));
  const thick = Math.max(step, 1.5);
  const frame = (x, y, w, h, more) => {
    marks.push(rectMark(x, y, w, h, { fill: "none", stroke: look.paper, width: 4 })); // otherwise cells can be as dark as the frame
    marks.push(rectMark(x, y, w, h, { fill: "none", stroke: look.accent, width: 2, ...more }));
  };
  if (focus?.row >= 0) frame(left, top + focus.row * step, wide, thick);
  if (focus?.key >= 0) frame(left + focus.key * step, top, thick, tall, { dash: [4, 3] });
  return marks;
}

/** Frame the cells that hold an edge of the circuit. */
function markedCells(picture, { left, top, cell }, block) {
  const side = Math.max(cell, 5);
  return headsOf(picture).flatMap(({ head, marked = new Set() }) => {
    const { row } = indexOf(head);
    return Array.from(marked, (e) => {
      const [x, y] = [Math.floor(head.key[e] / block), Math.floor(row[e] / block)].map((at) => (at + 0.5) * cell - side / 2);
      return rectMark(left + x, top + y, side, side, { fill: "none", stroke: picture.look.mark, width: 3 });
    });
  });
}

/** The heads of a picture: one, or those that are drawn over each other. */
const headsOf = (picture) => picture.overlaid ?? [picture];

/** Rows are queries, columns are keys; a cell of several edges has the value of the largest. */
export function matrix(picture) {
  const { head, look, width, focus, weight } = picture;
  const cells = cellsOf(picture);
  const places = matrixPlaces(picture, cells);
  const { left, top, cell, step, onRows, onKeys, wide, tall } = places;
  const { rows, columns, pixels, block } = cells;
  const marks = [rectMark(left, top, wide, tall, { fill: "none", stroke: look.faint }), { mark: "cells", x: left, y: top, w: wide, h: tall, rows, columns, pixels }];
  marks.push(...markedCells(picture, places, block));
  if (cell >= 34) marks.push(...cellNumbers(cells, places));
  marks.push(...matrixLines(picture, places));
  const readings = headsOf(picture).map((one) => readingsOf(one.head, focus ?? { key: -1, row: -1 }, weight));
  const read = new Set(readings.flatMap(({ reads }) => reads.flatMap(({ key, isClear }) => (isClear ? [key] : []))));
  const readers = new Set(readings.flatMap(({ readBy }) => readBy.flatMap(({ row, isClear }) => (isClear ? [row] : []))));
  const onLeft = { place: (i) => [left - 6, top + (i + 0.5) * step], anchor: "end", angle: 0, isFocus: (i) => focus?.row === i, isLinked: (i) => readers.has(i) };
  const above = onKeys.angle ? top - 5 : top - 11;
  const onTop = { place: (j) => [left + (j + 0.5) * step, above], anchor: onKeys.angle ? "start" : "middle", isFocus: (j) => focus?.key === j, isLinked: (j) => read.has(j) };
  marks.push(...labelRow(picture, head.queries, onRows, onLeft), ...labelRow(picture, head.keys, onKeys, onTop));
  const keyTop = top + tall + 18;
  marks.push(noteMark(look, 4, 12, "rows: queries ↓   columns: keys →"), ...scaleMarks(picture, left, keyTop, false));
  const largest = [...(block > 1 ? [`${block} × ${block}`] : []), ...(picture.overlaid ? [`${picture.overlaid.length} heads`] : [])].join(" of ");
  if (largest) marks.push(noteMark(look, left + 190, keyTop + 14, `a cell is the largest of ${largest}`));
  const hit = (x, y) => {
    const [row, key] = [Math.floor((y - top) / step), Math.floor((x - left) / step)];
    const isRow = row >= 0 && row < head.queries.length;
    const isKey = key >= 0 && key < head.keys.length;
    if ((!isRow && !isKey) || x < 0 || y < 0 || (!isRow && y > top) || (!isKey && x > left)) return null;
    return { row: isRow ? row : -1, key: isKey ? key : -1, isPair: isRow && isKey };
  };
  const place = (x, y) => [Math.min(1, Math.max(0, (x - left) / wide)), Math.min(1, Math.max(0, (y - top) / tall))];
  return { width, height: keyTop + KEY_HEIGHT, marks, hit, place };
}
