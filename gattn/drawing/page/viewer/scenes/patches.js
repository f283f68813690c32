// Patches: tokens on the grid of an image, shaded over it.

import { number } from "../heads/texts.js";
import { inkOn, Scale, rgb } from "./colours.js";
import { KEY_HEIGHT, named, noteMarks, rectMark, scaleMarks, textMark } from "./marks.js";
import { isSame, nodesOf } from "./lines.js";
import { boxesOf, shadesOf } from "./passage.js";

const FADED = { light: [115, 255], dark: [0, 128] };
const OPACITY = [0.25, 0.9];
const MOST_BOXES = 200;
const pixels = new WeakMap();

/** The image in grey, lighter or darker than it is, so that colours over it stand out. */
export function fadedPixels(image, look) {
  if (!pixels.has(image)) pixels.set(image, {});
  const known = pixels.get(image);
  if (!known[look.name]) {
    const [low, high] = FADED[look.name];
    const found = new Uint8ClampedArray(4 * image.grey.length);
    image.grey.forEach((grey, at) => found.set([...Array(3).fill(low + ((high - low) * grey) / 255), 255], 4 * at));
    known[look.name] = found;
  }
  return known[look.name];
}

/**
 * The scale of what is shown: to the largest number on the image, since attention on many patches is pale on a scale to 1.
 * It begins at 0, or at the least where all are above half of the largest, so that differences show. Where all are
 * equal within 1 %, it ends at twice the largest, so that the image stays visible.
 */
function ownScale({ scale, weight }, shades, tokens) {
  if (weight === "score") return scale;
  const values = Array.from(shades).filter((_, n) => tokens[n].at);
  const known = values.filter(Number.isFinite);
  const top = known.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const isAlike = values.every((value) => Math.sign(values[0]) * value >= 0.99 * top);
  const least = known.reduce((low, value) => Math.min(low, value), top);
  const [begin, end] = isAlike ? [0, 2 * top] : [least > top / 2 && least < 0.99 * top ? least : 0, top];
  return new Scale(scale.label, scale.isSigned ? -end : begin, end, false, tokens.length, scale.isSigned);
}

/** Say where colours begin, if that is neither 0 nor the least of all scores. */
const rangeSaid = ({ low, high, isSigned }, weight) => (weight !== "score" && !isSigned && low ? `; colours run from ${number(low)} to ${number(high)}, not from 0` : "");

/** Tokens as patches, over the image if the page has one; those that are no patches stand above as boxes. */
export function patches(picture) {
  const { head, look, width, height, focus, matches, stack, image } = picture;
  const all = nodesOf(head);
  const { shades, what } = shadesOf(picture, all);
  const scale = ownScale(picture, shades, all.tokens);
  const { size, ratio } = [stack.keys, stack.queries].find((side) => side?.places?.kind === "grid").places;
  const isPatch = (token) => token.at && sideOf(stack, head, token)?.kind === "grid";
  const apart = all.tokens.flatMap((token, node) => (isPatch(token) ? [] : [node])).slice(0, MOST_BOXES);
  const marks = noteMarks(look, 12, width, what + rangeSaid(scale, picture.weight));
  const boxes = boxesOf(apart.map((node) => all.tokens[node]), width, 20 + 14 * marks.length);
  const chosen = focus ? all.tokens.findIndex((_, node) => isSame(all.place(node), focus)) : -1;
  apart.forEach((node, n) => marks.push(...boxMarks(picture, scale, boxes[n], shades[node], { token: all.tokens[node], isFocus: node === chosen })));
  const top = boxes.length ? boxes.at(-1).y + 36 : 24 + 14 * marks.length;
  const wide = Math.max(4, Math.min((width - 16) / size[0], Math.max(height - top - KEY_HEIGHT, 220) / (size[1] * ratio)));
  const tall = wide * ratio;
  const [left, across, down] = [8, wide * size[0], tall * size[1]];
  if (image) marks.push({ mark: "cells", x: left, y: top, w: across, h: down, pixels: fadedPixels(image, look), columns: image.columns, rows: image.rows });
  else marks.push(rectMark(left, top, across, down, { fill: look.faint }));
  const nodeAt = new Map();
  const outlined = [];
  all.tokens.forEach((token, node) => {
    if (!isPatch(token)) return;
    const [x, y] = [left + token.at[0] * wide, top + token.at[1] * tall];
    nodeAt.set(token.at.join(), node);
    if (!Number.isNaN(shades[node])) marks.push(rectMark(x, y, wide, tall, { fill: see(scale, shades[node], look) }));
    if (node === chosen || matches.has(token)) outlined.push([x, y, node === chosen]);
  });
  for (const [x, y, isFocus] of outlined) {
    marks.push(rectMark(x, y, wide, tall, { stroke: look.paper, width: isFocus ? 4 : 3 }));
    marks.push(rectMark(x, y, wide, tall, { stroke: look.accent, width: isFocus ? 2 : 1.5, ...(isFocus ? {} : { dash: [4, 2] }) }));
  }
  marks.push(...scaleMarks({ ...picture, scale, colourOf: (value) => `rgb(${overGrey(scale, value, look).join(",")})` }, 8, top + down + 18, false));
  const hit = (px, py) => {
    const at = boxes.findIndex(({ x, y, wide: w, tall: h }) => px >= x && px <= x + w && py >= y && py <= y + h);
    if (at >= 0) return all.place(apart[at]);
    const node = nodeAt.get([Math.floor((px - left) / wide), Math.floor((py - top) / tall)].join());
    return node === undefined ? null : all.place(node);
  };
  return { width, height: top + down + 18 + KEY_HEIGHT, marks, hit };
}

/** Where the side that a token is of lies. */
function sideOf(stack, head, token) {
  return (head.rowNode || head.keys.includes(token) ? stack.keys : stack.queries).places;
}

function opacityOf(scale, value) {
  const [low, high] = OPACITY;
  return low + (high - low) * scale.place(value);
}

const see = (scale, value, look) => `rgba(${scale.rgb(value, look).join(",")},${opacityOf(scale, value).toFixed(3)})`;

/** The colour of a value as it looks over an image of medium lightness. */
function overGrey(scale, value, look) {
  const [opacity, grey] = [opacityOf(scale, value), (FADED[look.name][0] + FADED[look.name][1]) / 2];
  return scale.rgb(value, look).map((part) => Math.round(grey + (part - grey) * opacity));
}

/** A token that is no patch, as in the view of text. */
function boxMarks({ look, matches }, scale, { x, y, wide, tall, label }, shade, { token, isFocus }) {
  const colour = Number.isNaN(shade) ? rgb(look.paper) : overGrey(scale, shade, look);
  const border = isFocus ? { stroke: look.accent, width: 2.5 } : matches.has(token) ? { stroke: look.accent, width: 1.5, dash: [4, 2] } : { stroke: look.faint };
  const title = isFocus ? named(token) : label;
  return [
    rectMark(x, y, wide, tall, { fill: `rgb(${colour.join(",")})`, radius: 4, ...border }),
    textMark(x + 6, y + tall / 2, title.length > label.length ? label : title, inkOn(colour), { size: 14, bold: isFocus }),
  ];
}
