// Tokens coloured by numbers of their own.

import { Scale } from "../scenes/colours.js";

/** The scale of some numbers: from 0 to 1 if they are within, else from the least to the largest; both sides of 0 alike. */
function tintScale(name, values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!(high >= low) || (low >= 0 && high <= 1)) [low, high] = [0, 1];
  return new Scale(name, low, high > low ? high : low + 1, false, 5, low < 0 && high > 0);
}

/** How to colour tokens by numbers: {scale, valueOf, rgbOf, colourOf}; those of a word are their mean, and NaN is no colour. */
export function tintOf(name, values, look) {
  if (!values) return null;
  const scale = tintScale(name, values);
  const valueOf = (token) => {
    const own = token.virtual ? [] : values.slice(token.index, (token.last ?? token.index) + 1).filter((value) => value !== null);
    return own.length ? own.reduce((sum, value) => sum + value, 0) / own.length : NaN;
  };
  const rgbOf = (token) => (Number.isNaN(valueOf(token)) ? null : scale.rgb(valueOf(token), look));
  return { scale, valueOf, rgbOf, colourOf: (token) => scale.colour(valueOf(token), look) };
}
