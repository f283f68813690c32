// Text with shaded tokens.

import { isolated, spelled, textWidth } from "../heads/texts.js";
import { AMOUNTS } from "../heads/regrouping.js";
import { readingsOf } from "../heads/readings.js";
import { inkOn, rgb } from "./colours.js";
import { KEY_HEIGHT, lineMark, named, noteMarks, rectMark, scaleMarks, textMark } from "./marks.js";
import { firstGenerated, isSame, nodesOf } from "./lines.js";

/** Shade the nodes of a head: by what the focus reads, by what reads it, or by the mean that they receive. */
export function shadesOf({ head, focus, weight }, nodes) {
  const shades = new Float64Array(nodes.tokens.length).fill(NaN);
  if (!focus) {
    const value = head.values[weight];
    const isAmount = AMOUNTS.includes(weight);
    const counts = new Uint32Array(head.keys.length).fill(isAmount ? head.queries.length : 0);
    shades.fill(0, 0, head.keys.length);
    head.key.forEach((key, e) => {
      const isThere = !Number.isNaN(value[e]);
      if (isThere) shades[key] += value[e];
      if (isThere !== isAmount) counts[key] += isAmount ? -1 : 1;
    });
    counts.forEach((edges, key) => (shades[key] = edges ? shades[key] / edges : NaN));
    return { shades, what: `shaded by the mean ${weight} ${isAmount ? "that a query gives each token" : "of the edges from each token"}` };
  }
  const isReading = focus.row >= 0;
  const { reads, readBy } = readingsOf(head, focus, weight);
  for (const { row, key, value } of isReading ? reads : readBy) shades[isReading ? key : nodes.ofRow(row)] = value;
  const whose = isolated(named(isReading ? head.queries[focus.row] : head.keys[focus.key]));
  return { shades, what: isReading ? `shaded by what ${whose} reads` : `shaded by what reads ${whose}` };
}

/** Set tokens as lines of boxes; queries of cross-attention begin a new line. */
export function boxesOf(tokens, width, top, isBreak) {
  let [x, y] = [8, top];
  return tokens.map((token, n) => {
    const label = spelled(token, 40);
    const wide = 1.06 * textWidth(label, 14) + 12;
    if (x + wide > width - 8 || isBreak(n)) [x, y] = [8, y + 30 + (isBreak(n) ? 20 : 0)];
    x += wide + 3;
    return { x: x - wide - 3, y, wide, tall: 25, label };
  });
}

const MOST_WORDS = 1200;

/** The text itself, shaded by what the focus reads or, without one, by what each token receives. */
export function textView(picture) {
  const { head, look, width, focus, scale, matches } = picture;
  const nodes = nodesOf(head);
  const { shades, what } = shadesOf(picture, nodes);
  const chosen = focus ? nodes.tokens.findIndex((_, node) => isSame(nodes.place(node), focus)) : -1;
  const from = Math.max(0, Math.min(nodes.tokens.length - MOST_WORDS, chosen - MOST_WORDS / 2));
  const shown = nodes.tokens.slice(from, from + MOST_WORDS);
  const part = shown.length < nodes.tokens.length ? `; ${shown.length} tokens from position ${shown[0].position}` : "";
  const marks = noteMarks(look, 12, width, what + part + (firstGenerated(shown) >= 0 ? "; underlined: generated" : ""));
  const top = 20 + 14 * marks.length;
  const boxes = boxesOf(shown, width, top, (n) => !head.rowNode && n + from === head.keys.length);
  shown.forEach((token, n) => {
    const { x, y, wide, tall, label } = boxes[n];
    const colour = Number.isNaN(shades[n + from]) ? rgb(look.paper) : scale.rgb(shades[n + from], look);
    const isFocus = n + from === chosen;
    const border = isFocus ? { stroke: look.accent, width: 2.5 } : matches.has(token) ? { stroke: look.accent, width: 1.5, dash: [4, 2] } : { stroke: look.faint };
    marks.push(rectMark(x, y, wide, tall, { fill: `rgb(${colour.join(",")})`, radius: 4, ...border }));
    marks.push(textMark(x + 6, y + tall / 2, label, inkOn(colour), { size: 14, bold: isFocus }));
    if (token.generated) marks.push(lineMark(x + 5, y + tall - 4, x + wide - 5, y + tall - 4, inkOn(colour), 1, { dash: [2, 2] }));
  });
  const keyTop = (boxes.at(-1)?.y ?? top) + 46;
  marks.push(...scaleMarks(picture, 8, keyTop, false));
  const hit = (px, py) => {
    const at = boxes.findIndex(({ x, y, wide, tall }) => px >= x - 2 && px <= x + wide + 2 && py >= y && py <= y + tall + 5);
    return at < 0 ? null : nodes.place(at + from);
  };
  return { width, height: keyTop + KEY_HEIGHT, marks, hit };
}
