// Text with shaded tokens.

import { cutTo, fromRight, isolated, several, spelled, textWidth } from "../heads/texts.js";
import { AMOUNTS } from "../heads/regrouping.js";
import { beginsWord, sideBySide } from "../heads/signs.js";
import { inSight, levelsOf } from "../heads/directions.js";
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

/** Set the tokens of a paragraph as lines: {y, items}, of boxes and of the gaps between them. */
function linesOfBoxes(tokens, { labels, levels, gaps }, room, top) {
  const wides = labels.map((label) => textWidth(label, SIZE_OF_WORDS, true) + 2 * PADDING);
  const lines = [{ y: top, items: [] }];
  let x = 0;
  tokens.forEach((_, n) => {
    const isFirst = beginsWord(tokens, n);
    let end = n + 1;
    while (isFirst && end < tokens.length && !beginsWord(tokens, end)) end++;
    const word = wides.slice(n, end).reduce((sum, one) => sum + one + WITHIN_WORDS, -WITHIN_WORDS);
    const gap = isFirst ? BETWEEN_WORDS : WITHIN_WORDS;
    if (x && x + gap + (word <= room ? word : wides[n]) > room) {
      lines.push({ y: lines.at(-1).y + AFTER_LINE, items: [] });
      x = 0;
    } else if (x) {
      lines.at(-1).items.push({ wide: gap, level: gaps[n] });
      x += gap;
    }
    lines.at(-1).items.push({ n, wide: wides[n], level: levels[n] });
    x += wides[n];
  });
  return lines;
}

/**
 * Set tokens as lines of boxes: those of a word touch and stay in a line, words stand apart. If most letters are Arabic or
 * Hebrew, lines run from right to left; within a line, so do their words alone.
 */
export function boxesOf(tokens, width, top) {
  const room = width - 2 * EDGE;
  const { isRight, levels, gaps } = levelsOf(tokens);
  const isMixed = (label, n) => levels[n] % 2 && /[\p{P}\p{S}]/u.test(label);
  const labels = labelsBeside(tokens)
    .map((label) => cutTo(label, room - 2 * PADDING, SIZE_OF_WORDS))
    .map((label, n) => (isMixed(label, n) ? fromRight(label) : label));
  const boxes = [];
  for (const { y, items } of linesOfBoxes(tokens, { labels, levels, gaps }, room, top)) {
    let x = isRight ? width - EDGE - items.reduce((sum, { wide }) => sum + wide, 0) : EDGE;
    for (const { n, wide } of inSight(items)) {
      if (n !== undefined) boxes[n] = { x, y, wide, tall: 25, label: labels[n] };
      x += wide;
    }
  }
  return boxes;
}

/** Set keys and queries of cross-attention as paragraphs of their own. */
function paragraphs(tokens, first, width, top) {
  const boxes = boxesOf(tokens.slice(0, first), width, top);
  const next = first < tokens.length && boxes.length ? boxes.at(-1).y + AFTER_BREAK : top;
  return [...boxes, ...boxesOf(tokens.slice(first), width, next)];
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
  const boxes = paragraphs(shown, head.rowNode ? shown.length : Math.max(0, head.keys.length - from), width, top);
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
