// The marks that scenes consist of: lines, boxes, notes, scales and labels.

import { cutTo, number, partSaid, spelled, textWidth } from "../heads/texts.js";
import { alone } from "../heads/directions.js";
import { hueText, inkOn } from "./colours.js";

export const lineMark = (x1, y1, x2, y2, stroke, width = 1, more = {}) => ({ mark: "line", x1, y1, x2, y2, stroke, width, ...more });
export const curvesMark = (paths, stroke, width, more = {}) => ({ mark: "curves", paths, stroke, width, ...more });
export const rectMark = (x, y, w, h, more) => ({ mark: "rect", x, y, w, h, ...more });
export const textMark = (x, y, text, fill, more = {}) => ({ mark: "text", x, y, text, fill, size: 12, anchor: "start", ...more });

export const noteMark = (look, x, y, text, anchor = "start") => textMark(x, y, text, look.muted, { size: 11, anchor });

/** Write a note in as many lines as needed. */
export const noteMarks = (look, y, width, text) => wrapped(text, width - 20, 11).map((line, n) => noteMark(look, 8, y + 14 * n, line));

const THIN = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
const SIZE = 12;

const labelsOf = new WeakMap();
const widest = (labels) => labels.reduce((most, label) => Math.max(most, label && textWidth(label, SIZE)), 0);

/**
 * Fit labels to the distance between neighbours: turned, then thinned out and, where names repeat, numbered; and cut to the room that each has.
 *
 * @returns {{texts: string[], angle: number, size: number, extent: number, stride: number, full: function(number): string}}
 * `full` writes a label that was thinned out, in the room of the others.
 */
export function fitLabels(tokens, pitch, angles, most = Infinity) {
  if (!labelsOf.has(tokens)) {
    const all = tokens.map((token) => spelled(token));
    labelsOf.set(tokens, { all, wide: widest(all) });
  }
  const { all, wide } = labelsOf.get(tokens);
  const room = { 0: wide + 8, 45: 1.5 * SIZE, 90: 1.2 * SIZE };
  let angle = angles.find((a) => pitch >= room[a]);
  let size = SIZE;
  let stride = 1;
  if (angle === undefined) {
    angle = angles.at(-1);
    size = Math.min(SIZE, Math.max(9, pitch / 1.2));
    stride = THIN.find((k) => k * pitch >= 1.2 * size) ?? THIN.at(-1);
  }
  const numbered = (i, limit) => {
    const begin = tokens[i].isNumbered ? `${tokens[i].position} ` : "";
    const name = cutTo(all[i], limit - textWidth(begin, size, true), size);
    return begin ? begin + alone(name) : name;
  };
  const isShown = (i) => i % stride === 0 || tokens[i].virtual;
  const texts = all.map((text, i) => (stride === 1 ? cutTo(text, most, size) : isShown(i) ? numbered(i, most) : ""));
  const long = Math.min(most, (stride > 1 ? widest(texts) : wide) * (size / SIZE));
  const extent = { 0: size + 6, 45: 0.72 * long + size, 90: long + 6 }[angle];
  return { texts, angle, size, extent, stride, wide: long, full: (i) => numbered(i, stride > 1 ? long + 6 : most) };
}

/** The full label of a token, with what tells it apart: its position first, as in figures. */
export function named(token) {
  const whole = partSaid(token);
  const name = token.isNumbered || whole ? alone(spelled(token, 24)) : spelled(token, 24);
  return `${token.isNumbered ? `${token.position} ` : ""}${name}${whole ? ` (${whole})` : ""}`;
}

/** Draw a scale: its colours, for lines their widths, and round values; if hues are heads, how pale they are. */
export function scaleMarks({ scale, look, overlaid, colourOf }, x, y, isLine) {
  const [length, steps] = [168, 56];
  const label = overlaid && scale.isSigned ? `${scale.label}, whatever its sign` : scale.label;
  const colour = colourOf ?? ((value) => (overlaid ? hueText(look.ink, value, scale, look, isLine) : scale.colour(value, look, isLine)));
  const marks = [textMark(x, y, label, look.muted, { size: 11 })];
  for (let i = 0; i < steps; i++) {
    const here = scale.valueAt((i + 0.5) / steps);
    const tall = isLine ? Math.max(1, scale.width(here)) : 9;
    marks.push(rectMark(x + (i * length) / steps, y + 14 - tall / 2, length / steps + 0.5, tall, { fill: colour(here) }));
  }
  for (const tick of scale.ticks) {
    const at = x + scale.at(tick) * length;
    marks.push(lineMark(at, y + 19, at, y + 22, look.muted), textMark(at, y + 30, number(tick), look.muted, { size: 10.5, anchor: "middle" }));
  }
  return marks;
}

export const KEY_HEIGHT = 44;

/** Choose the style of a label by the focus and the search; `isLast` is drawn on top of the others. */
function labelStyle({ look, focus, matches, tint }, token, isFocus, isLinked, halo) {
  const colour = tint?.rgbOf(token);
  if (colour) {
    const border = isFocus || matches.has(token) ? { stroke: look.accent, width: 2 } : {};
    return { fill: inkOn(colour), bold: isFocus || Boolean(focus && isLinked), isLast: true, ground: { fill: tint.colourOf(token), radius: 3, ...border } };
  }
  if (isFocus) return { fill: look.accent, bold: true, isLast: true, ground: halo ? null : { fill: look.paper } };
  if (matches.has(token)) return { fill: look.accent, isLast: true, ground: { fill: look.soft, stroke: look.accent, radius: 3 } };
  return { fill: focus && !isLinked ? look.muted : look.ink, bold: Boolean(focus && isLinked) };
}

/**
 * Write a row of labels; those with a background come last, on top of the others.
 *
 * A token whose label is thinned out is still named if it is the focus, and gets a sign if it matches the search.
 * A halo parts labels from lines below them.
 */
export function labelRow(picture, tokens, labels, { place, anchor, isFocus, isLinked, sign = "●", angle = labels.angle, halo }) {
  const shown = tokens.flatMap((token, i) => {
    const isSign = !labels.texts[i] && !isFocus(i) && picture.matches.has(token);
    const style = isSign ? { fill: picture.look.accent } : labelStyle(picture, token, isFocus(i), isLinked(i), halo);
    const text = isSign ? sign : labels.texts[i] || (isFocus(i) ? labels.full(i) : "");
    return text ? [{ token, text, style, place: place(i) }] : [];
  });
  const ordered = [...shown.filter(({ style }) => !style.isLast), ...shown.filter(({ style }) => style.isLast)];
  return ordered.flatMap((label) => labelMarks(label, { angle, anchor, size: labels.size, halo }));
}

/** Write a label on its background; generated tokens are underlined. */
function labelMarks({ token, text, style, place: [x, y] }, { angle, anchor, size, halo }) {
  const wide = textWidth(text, size, style.bold) + 6;
  const left = { start: x - 3, middle: x - wide / 2, end: x - wide + 3 }[anchor];
  const turn = angle ? { angle: -angle, cx: x, cy: y } : {};
  const ground = style.ground && rectMark(left, y - size * 0.72, wide, size * 1.44, { ...style.ground, ...turn });
  const under = y + size * 0.62;
  const underline = token.generated && lineMark(left + 3, under, left + wide - 3, under, style.fill, 1, { dash: [2, 2], ...turn });
  return [ground, textMark(x, y, text, style.fill, { anchor, size, bold: style.bold, halo: ground ? undefined : halo, ...turn }), underline].filter(Boolean);
}

/** How far slanted labels reach to the left of the first token. */
export function overhang({ texts, angle }, pitch) {
  const reach = texts.slice(0, 8).map((label, i) => 0.72 * textWidth(label, SIZE) - (i + 0.5) * pitch - 12);
  return angle === 45 ? Math.max(0, ...reach) : 0;
}

export function wrapped(text, width, size) {
  const lines = [];
  for (const word of text.split(" ")) {
    if (lines.length && textWidth(`${lines.at(-1)} ${word}`, size) < width) lines[lines.length - 1] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
}
