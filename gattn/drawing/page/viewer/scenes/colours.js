// Colours and scales: the place of a value, its colour, and the width of its line.

import { ticks } from "../heads/texts.js";

/** The colours of everything except values. */
const LOOKS = {
  light: { name: "light", paper: "#ffffff", ink: "#1c2230", muted: "#5b6475", faint: "#dfe3ea", ground: "#f6f7f9", accent: "#b4460f", soft: "#fdf0e6", mark: "#f3c13a" },
  dark: { name: "dark", paper: "#12151d", ink: "#e8ebf2", muted: "#9ba5b7", faint: "#2c3342", ground: "#0c0e14", accent: "#ffb066", soft: "#3a2a1a", mark: "#9a7a14" },
};

export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function ramp(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (colours.length - 1);
    const left = Math.min(Math.floor(at), colours.length - 2);
    return colours[left].map((part, c) => Math.round(part + (colours[left + 1][c] - part) * (at - left)));
  });
}

/** The colours of heads that are drawn over each other: of pinned ones, and last, of the chosen one. */
const HUES = {
  light: ["#0072b2", "#00805a", "#b5408f", "#7d6200", "#6a4fc3", "#444b5a", "#007d92", "#c04d00"],
  dark: ["#56b4e9", "#3fd0a0", "#f08bc8", "#e8d44d", "#b39cff", "#c4cad6", "#4fd8e0", "#ff9e4a"],
};

/** Join a look and its colours of attention: 256 of each kind, interpolated from stops. */
export const lookOf = (name, ramps) => ({ ...LOOKS[name], hues: HUES[name], unsigned: ramp(ramps[name].unsigned), signed: ramp(ramps[name].signed) });

/** Name the colours that the style sheet uses; bars have the colour of strong attention. */
export function cssOf({ paper, ink, muted, faint, ground, accent, unsigned, signed }) {
  return { paper, ink, muted, faint, ground, accent, bar: `rgb(${unsigned[170]})`, minus: `rgb(${signed[42]})` };
}

/** The colours of bars below and above 0. */
export const barColours = ({ signed }) => [42, 213].map((at) => `rgb(${signed[at].join(",")})`);

const signedRoot = (x) => Math.sign(x) * Math.sqrt(Math.abs(x));

/** Undo a signed root. */
export const signedSquare = (x) => Math.sign(x) * x * x;

/**
 * The scale of a weight: attention on a square-root scale from 0 (or -1 if signed) to 1; other values on a linear
 * scale from the least to the largest; changes on both sides of 0.
 */
export class Scale {
  constructor(label, low, high, isRoot, tokens = 5, isSigned = isRoot && low < 0) {
    this.label = label;
    this.isSigned = isSigned;
    this.isRoot = isRoot;
    this.high = this.isSigned ? Math.max(-low, high) : high;
    this.low = this.isSigned ? -this.high : low;
    this.pen = 8.7 / Math.max(tokens, 5) ** 0.25;
  }

  /** The scale shared by heads on the same tokens: both runs of a comparison, or one change. */
  static of(heads, weight) {
    const [{ isChange, keys }] = heads;
    let [low, high] = [Infinity, -Infinity];
    for (const head of heads) for (const value of head.values[weight]) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (!(high >= low)) [low, high] = [0, 1];
    const label = isChange ? `change in ${weight}` : weight;
    const nodes = keys.length;
    if (isChange) {
      const top = weight === "attention" ? Math.max(1, -low, high) : Math.max(-low, high) || 1;
      return new Scale(label, -top, top, weight === "attention", nodes, true);
    }
    if (weight === "attention") return new Scale(label, low < -1e-6 ? Math.min(low, -1) : 0, high > 1.0001 ? high : 1, true, nodes);
    return new Scale(label, low, high > low ? high : low + 1, false, nodes);
  }

  /** The same scale with wider lines, for the few edges of a focus. */
  forFew() {
    return Object.assign(Object.create(Scale.prototype), this, { pen: Math.max(this.pen, 4) });
  }

  /** Where a value is on the scale, from 0 to 1. */
  at(value) {
    const bend = this.isRoot ? signedRoot : (x) => x;
    const [low, high] = [bend(this.low), bend(this.high)];
    return Math.min(1, Math.max(0, (bend(value) - low) / (high - low))) || 0;
  }

  /** The value that is at a place, from 0 to 1. */
  valueAt(place) {
    if (!this.isRoot) return this.low + place * (this.high - this.low);
    const low = signedRoot(this.low);
    return signedSquare(low + place * (signedRoot(this.high) - low));
  }

  /** How far a value is from none, from 0 to 1, whatever its sign. */
  place(value) {
    return this.isSigned ? Math.abs(2 * this.at(value) - 1) : this.at(value);
  }

  rgb(value, look, isLine = false) {
    const start = isLine && !this.isSigned ? 0.16 : 0;
    return look[this.isSigned ? "signed" : "unsigned"][Math.round(255 * (start + (1 - start) * this.at(value)))];
  }

  colour(value, look, isLine = false) {
    return `rgb(${this.rgb(value, look, isLine).join(",")})`;
  }

  /** The share of the largest value; without a natural zero, counted from the least. */
  share(value) {
    const isFromZero = this.isSigned || this.low >= 0;
    return Math.min(1, isFromZero ? Math.abs(value) / this.high : this.at(value)) || 0;
  }

  /** The width of a line in pixels. */
  width(value) {
    return this.pen * (0.14 + 0.86 * this.share(value));
  }

  get ticks() {
    if (!this.isRoot) return ticks(this.low, this.high);
    const above = [0.05, 0.25, 0.5, 1].map((share) => Number((this.high * share).toPrecision(2)));
    return this.isSigned ? [-above[3], -above[1], 0, above[1], above[3]] : above;
  }
}

/** Mix a colour with the paper: all of it for a share of 1. */
export function mixed(hue, look, share) {
  const [paper, full] = [rgb(look.paper), rgb(hue)];
  return paper.map((part, c) => Math.round(part + (full[c] - part) * share));
}

/** The colour of a value of one of several heads: its hue, the paler the smaller the value; lines are never as pale as cells. */
export function hueOf(hue, value, scale, look, isLine = false) {
  const least = isLine ? 0.3 : 0.08;
  return mixed(hue, look, least + (1 - least) * scale.place(value));
}

export const hueText = (...of) => `rgb(${hueOf(...of).join(",")})`;

/** The relative luminance of a colour, for contrast ratios. */
const luminance = (parts) => {
  const [red, green, blue] = parts.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

/** Choose the ink, black or white, with more contrast on a colour. */
export const inkOn = (colour) => ((luminance(colour) + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff");
