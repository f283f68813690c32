// Which way tokens run: those of Arabic and Hebrew from right to left, all others and numbers from left to right.

import { beginsWord, sideBySide } from "./signs.js";
import { isolated } from "./texts.js";

const FROM_RIGHT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\u061b\u061f]/u;
const LETTERS = /\p{L}/gu;

export const hasRight = (text) => FROM_RIGHT.test(text);

/** Keep a text that runs from right to left apart from what stands beside it, such as its number. */
export const alone = (text) => (hasRight(text) ? isolated(text) : text);

/** Whether most letters of tokens are written from right to left; bytes count as the characters that they are part of. */
export function isFromRight(tokens) {
  const letters = sideBySide(tokens).filter((_, n) => !tokens[n].special).join("").match(LETTERS) ?? [];
  return 2 * letters.filter(hasRight).length > letters.length;
}

/** The direction of a token: "L", "R", "N" for a number, "," for what stands between digits, "" for what runs with its neighbours. */
function kindOf(text) {
  const letter = text.match(LETTERS)?.[0];
  if (hasRight(letter ?? text)) return "R";
  if (letter) return "L";
  return /\p{Nd}/u.test(text) ? "N" : /^[.,:/]$/.test(text) ? "," : "";
}

/** Decide what runs with its neighbours: with both if they agree, else with the text. */
function decided(kinds, usual) {
  const side = (kind) => (kind === "N" ? "R" : kind);
  let from = 0;
  return kinds.map((kind, n) => {
    if (kind) return kind;
    if (!n || kinds[n - 1]) from = n;
    const to = kinds.findIndex((one, at) => at > n && one);
    const [before, after] = [from ? side(kinds[from - 1]) : usual, to < 0 ? usual : side(kinds[to])];
    return before === after ? before : usual;
  });
}

/** List the directions of tokens, as {kind, n}, and of spaces before them, whose n is -1; tokens that only go on with a sign are left out. */
function kindsOf(tokens, usual) {
  const texts = sideBySide(tokens);
  let strong = usual;
  return texts.flatMap((text, n) => {
    if (text === null) return [];
    const kind = tokens[n].special ? usual : kindOf(text.trim());
    if (kind === "L" || kind === "R") strong = kind;
    const isApart = /^\s+\S/.test(text) || (kind === "N" && tokens[n].word !== null && beginsWord(tokens, n));
    return [...(isApart ? [{ kind: "", n: -1 }] : []), { kind: kind === "N" && strong === "L" ? "L" : kind, n }];
  });
}

/**
 * The levels of tokens and of the gaps before them, by the bidirectional algorithm of Unicode on tokens as a whole: what is
 * even runs from left to right, and what is higher stands within what is lower. Special tokens run as the text does.
 */
export function levelsOf(tokens) {
  const isRight = isFromRight(tokens);
  const usual = isRight ? "R" : "L";
  const units = kindsOf(tokens, usual);
  const isNumber = (unit) => unit?.kind === "N";
  const kinds = units.map(({ kind }, at) => (kind !== "," ? kind : isNumber(units[at - 1]) && isNumber(units[at + 1]) ? "N" : ""));
  const height = { L: isRight ? 2 : 0, R: 1, N: 2 };
  const [levels, gaps] = [Array(tokens.length), Array(tokens.length)];
  decided(kinds, usual).forEach((kind, at) => {
    if (units[at].n < 0) gaps[units[at + 1].n] = height[kind];
    else levels[units[at].n] = height[kind];
  });
  tokens.forEach((_, n) => {
    levels[n] ??= levels[n - 1];
    gaps[n] ??= Math.min(levels[n], levels[n - 1] ?? levels[n]);
  });
  return { isRight, levels, gaps };
}

/** Put what stands in a line, each with its level, in the order in which it is seen from the left. */
export function inSight(line) {
  const seen = [...line];
  const most = seen.reduce((high, { level }) => Math.max(high, level), 0);
  for (let level = most; level > 0; level--)
    for (let from = 0, to; from < seen.length; from = to + 1) {
      for (to = from; to < seen.length && seen[to].level >= level; to++);
      seen.splice(from, to - from, ...seen.slice(from, to).reverse());
    }
  return seen;
}
