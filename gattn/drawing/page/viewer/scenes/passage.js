// Text with shaded tokens.

import { cutTo, isolated, several, spelled, textWidth } from "../heads/texts.js";
import { AMOUNTS } from "../heads/regrouping.js";
import { beginsWord, sideBySide } from "../heads/signs.js";
import { readingsOf } from "../heads/readings.js";
import { inkOn, rgb } from "./colours.js";
import { KEY_HEIGHT, lineMark, named, noteMarks, rectMark, scaleMarks, textMark } from "./marks.js";
import { firstGenerated, isSame, nodesOf } from "./lines.js";

/** Shade the nodes of a head: by what the focus reads, by what reads it, or by the mean that they receive. */
export function shadesOf({ head, stack, focus, weight }, nodes) {
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
    const given = head.isChange ? `change in the ${weight}` : weight;
    return { shades, what: `shaded by the mean ${given} ${isAmount ? "that a query gives each" : "of the edges from each"} ${stack.noun}` };
  }
  const isReading = focus.row >= 0;
  const { reads, readBy } = readingsOf(head, focus, weight);
  for (const { row, key, value } of isReading ? reads : readBy) shades[isReading ? key : nodes.ofRow(row)] = value;
  const whose = isolated(named(isReading ? head.queries[focus.row] : head.keys[focus.key]));
  const by = head.isChange ? "shaded by the change in what" : "shaded by what";
  return { shades, what: isReading ? `${by} ${whose} reads` : `${by} reads ${whose}` };
}

const [EDGE, PADDING, SIZE_OF_WORDS] = [8, 6, 14];
const [BETWEEN_WORDS, WITHIN_WORDS, AFTER_LINE, AFTER_BREAK] = [7, 1, 30, 50];
const FROM_RIGHT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/gu;

/** Whether most letters of a text are written from right to left; bytes count as the characters that they are part of. */
function isFromRight(tokens) {
  const text = sideBySide(tokens).filter((_, n) => !tokens[n].special).join("");
  const [some, all] = [FROM_RIGHT, /\p{L}/gu].map((letters) => text.match(letters)?.length ?? 0);
  return 2 * some > all;
}

/** Write tokens as they look side by side: with characters that they share, and Arabic letters in the form that they have within a word. */
function labelsBeside(tokens) {
  const texts = sideBySide(tokens);
  const isArabic = (text, end) => new RegExp(end ? "\\p{Script=Arabic}$" : "^\\p{Script=Arabic}", "u").test(text);
  return tokens.map((token, n) => {
    const label = spelled({ ...token, text: texts[n] ?? "·" }, 40);
    const before = !beginsWord(tokens, n) && isArabic(texts[n - 1] ?? "", true) && isArabic(label, false) ? "\u200d" : "";
    const after = n + 1 < tokens.length && !beginsWord(tokens, n + 1) && isArabic(label, true) && isArabic(texts[n + 1] ?? "", false) ? "\u200d" : "";
    return before + label + after;
  });
}

/**
 * Set tokens as lines of boxes: those of a word touch and stay in a line, words stand apart; queries of cross-attention
 * begin a new line. If most letters are Arabic or Hebrew, lines run from right to left.
 */
export function boxesOf(tokens, width, top, isBreak) {
  const room = width - 2 * EDGE;
  const labels = labelsBeside(tokens).map((label) => cutTo(label, room - 2 * PADDING, SIZE_OF_WORDS));
  const wides = labels.map((label) => textWidth(label, SIZE_OF_WORDS, true) + 2 * PADDING);
  const isRight = isFromRight(tokens);
  let [x, y] = [0, top];
  return tokens.map((_, n) => {
    const isFirst = beginsWord(tokens, n);
    let end = n + 1;
    while (isFirst && end < tokens.length && !beginsWord(tokens, end)) end++;
    const wide = wides[n];
    const word = wides.slice(n, end).reduce((sum, one) => sum + one + WITHIN_WORDS, -WITHIN_WORDS);
    const gap = isFirst ? BETWEEN_WORDS : WITHIN_WORDS;
    const isFull = x + gap + (word <= room ? word : wide) > room;
    if (isBreak(n)) [x, y] = [0, y + AFTER_BREAK];
    else if (x && isFull) [x, y] = [0, y + AFTER_LINE];
    else if (x) x += gap;
    x += wide;
    const left = isRight ? width - EDGE - x : EDGE + x - wide;
    return { x: left, y, wide, tall: 25, label: labels[n] };
  });
}

const MOST_WORDS = 1200;

/** The text itself, shaded by what the focus reads or, without one, by what each token receives. */
export function textView(picture) {
  const { head, look, width, focus, matches, tint } = picture;
  const scale = tint?.scale ?? picture.scale;
  const nodes = nodesOf(head);
  const { shades, what } = tint ? { shades: Float64Array.from(nodes.tokens, tint.valueOf), what: `coloured by ${tint.scale.label}` } : shadesOf(picture, nodes);
  const chosen = focus ? nodes.tokens.findIndex((_, node) => isSame(nodes.place(node), focus)) : -1;
  const from = Math.max(0, Math.min(nodes.tokens.length - MOST_WORDS, chosen - MOST_WORDS / 2));
  const shown = nodes.tokens.slice(from, from + MOST_WORDS);
  const part = shown.length < nodes.tokens.length ? `; ${shown.length} ${several(picture.stack.noun)} from position ${shown[0].position}` : "";
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
  marks.push(...scaleMarks({ scale, look }, 8, keyTop, false));
  const hit = (px, py) => {
    const at = boxes.findIndex(({ x, y, wide, tall }) => px >= x - 2 && px <= x + wide + 2 && py >= y && py <= y + tall + 5);
    return at < 0 ? null : nodes.place(at + from);
  };
  return { width, height: keyTop + KEY_HEIGHT, marks, hit };
}
