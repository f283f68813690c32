// The grid of all heads as small pictures.

import { signedSquare } from "./colours.js";
import { KEY_HEIGHT, lineMark, rectMark, scaleMarks, textMark } from "./marks.js";

/** Name the layers and heads around a grid, and bracket the heads that share keys and values. */
function gridNames({ layerNames, headNames, brackets, look }, { left, top, side, step }) {
  const stride = Math.ceil(18 / step);
  const name = (x, y, value, anchor) => textMark(x, y, String(value), look.muted, { anchor, size: 10.5 });
  const marks = [];
  headNames.forEach((head, c) => c % stride || marks.push(name(left + c * step + side / 2, top - 9, head, "middle")));
  layerNames.forEach((layer, r) => r % stride || marks.push(name(left - 7, top + r * step + side / 2, layer, "end")));
  for (const { from, to, name: shared } of brackets) {
    const [a, b] = [left + from * step, left + to * step + side];
    marks.push(lineMark(a, 14, b, 14, look.muted), lineMark(a, 14, a, 18, look.muted), lineMark(b, 14, b, 18, look.muted));
    if (b - a > 14) marks.push(name((a + b) / 2, 7, b - a > 70 ? `key-value ${shared}` : shared, "middle"));
  }
  return marks;
}

/** Read a byte of a thumbnail: the strongest attention of a block, or its largest change. */
export function shadeOf(byte, isChange) {
  return signedSquare(isChange ? (byte - 128) / 127 : byte / 255);
}

/** The smallest pictures that are made smaller so that all layers fit the height. */
const LEAST = 24;

/** Measure a grid: layers down and heads across, or sorted heads, of which `rows` rows fit the height. */
export function gridSize({ size, headNames, layerNames, width, height, brackets, isSorted }) {
  const [left, top] = [isSorted ? 4 : 26, isSorted ? 4 : brackets.length ? 38 : 20];
  const across = isSorted ? Math.max(1, Math.floor((width - left) / 66)) : headNames.length;
  const gap = across > 16 ? 2 : 4;
  const most = isSorted ? 96 : Math.max(LEAST, Math.min(96, (height - top) / layerNames.length - gap));
  const side = Math.max(8, Math.min(most, (width - left - 2) / across - gap));
  const down = side + gap + (isSorted ? 26 : 0);
  const rows = Math.max(2, Math.floor((height - top) / down));
  return { left, top, across, side, step: side + gap, down, rows, shown: isSorted ? Math.min(size, rows * across) : size };
}

/** All heads as small pictures: layers down and heads across, or in the order of a score from the head `first` on. */
export function headGrid(grid) {
  const { cells, layerNames, headNames, look, width, chosen, isSorted, first = 0 } = grid;
  const { left, top, across, side, step, down, rows } = gridSize({ ...grid, size: cells.length });
  const marks = isSorted || cells.length === 1 ? [] : gridNames(grid, { left, top, side, step });
  const boxes = cells.map((cell, n) => {
    const [c, r] = isSorted ? [n % across, Math.floor(n / across)] : [headNames.indexOf(cell.head), layerNames.indexOf(cell.layer)];
    const [x, y] = [left + c * step, top + r * down];
    marks.push(rectMark(x - 0.5, y - 0.5, side + 1, side + 1, { fill: look.paper, stroke: look.faint }));
    marks.push({ mark: "cells", x, y, w: side, h: side, rows: cell.rows, columns: cell.columns, pixels: cell.pixels });
    if (cell.isPinned) marks.push(rectMark(x - 1, y - 1, side + 2, side + 2, { fill: "none", stroke: look.accent, width: 2, dash: [3, 2] }));
    if (cell.isMarked) marks.push(rectMark(x, y, side, side, { fill: "none", stroke: look.mark, width: side > 16 ? 4 : 2 }));
    const say = (dy, text, fill) => marks.push(textMark(x + side / 2, y + side + dy, text, fill, { anchor: "middle", size: 10.5 }));
    if (isSorted) say(9, `${cell.layer}.${cell.head}`, look.ink), say(21, cell.said, look.muted);
    return { x, y };
  });
  const box = boxes[chosen - first];
  if (box) marks.push(rectMark(box.x - 2, box.y - 2, side + 4, side + 4, { fill: "none", stroke: look.accent, width: 3, radius: 2 }));
  const bottom = boxes.reduce((most, { y }) => Math.max(most, y + down), top) + 12;
  marks.push(...scaleMarks(grid, left, bottom, false));
  const hit = (x, y) => {
    const n = boxes.findIndex((one) => x >= one.x - 2 && x < one.x + side + 2 && y >= one.y - 2 && y < one.y + down - 2);
    return n < 0 ? null : n + first;
  };
  return { width: Math.max(width, left + across * step), height: bottom + KEY_HEIGHT, marks, hit, across, down, rows, box: box && { ...box, side } };
}
