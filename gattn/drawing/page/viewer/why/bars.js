// The elements of a query and a key, and their products, as bars.

import { number, ticks } from "../heads/texts.js";
import { barColours } from "../scenes/colours.js";
import { lineMark, noteMark, noteMarks, rectMark, textMark } from "../scenes/marks.js";

const [LEFT, HIGH, BETWEEN, WIDEST] = [118, 84, 20, 16];

/** Draw elements in their order: query and key on one scale, and below them their products, which sum to the score. */
export function elementBars({ query, key }, look, width) {
  const products = query.map((x, d) => x * key[d]);
  const bands = [["query", query, [query, key]], ["key", key, [query, key]], ["query × key", products, [products]]];
  const step = Math.min(WIDEST, (width - LEFT - 12) / query.length);
  const marks = noteMarks(look, 8, width, "one bar per element, in order; query and key on one scale, upwards: positive");
  const top = 14 * marks.length + 14;
  bands.forEach(([name, values, sides], n) => marks.push(...bandMarks(name, values, largest(sides), look, top + n * (HIGH + BETWEEN), step)));
  const bottom = top + bands.length * (HIGH + BETWEEN);
  const whole = ticks(0, query.length - 1).filter(Number.isInteger);
  marks.push(...whole.map((d) => noteMark(look, LEFT + (d + 0.5) * step, bottom - 8, String(d), "middle")));
  return { width, height: bottom + 4, marks };
}

const largest = (sides) => sides.flat().reduce((most, x) => Math.max(most, Math.abs(x)), 0);

function bandMarks(name, values, most, look, top, step) {
  const middle = top + HIGH / 2;
  const [minus, plus] = barColours(look);
  const gap = step > 3 ? 1 : 0;
  const marks = [textMark(8, middle, name, look.ink)];
  for (const [value, y] of most ? [[most, top], [0, middle], [-most, top + HIGH]] : [[0, middle]]) {
    marks.push(lineMark(LEFT - 4, y, LEFT, y, look.muted), noteMark(look, LEFT - 7, y, number(value), "end"));
  }
  values.forEach((x, d) => {
    const tall = most ? (Math.abs(x) / most) * (HIGH / 2) : 0;
    if (tall) marks.push(rectMark(LEFT + d * step, x > 0 ? middle - tall : middle, step - gap, tall, { fill: x > 0 ? plus : minus }));
  });
  marks.push(lineMark(LEFT, middle, LEFT + values.length * step, middle, look.muted));
  return marks;
}
