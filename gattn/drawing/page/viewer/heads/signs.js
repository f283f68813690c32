// What is one sign to a reader, though several tokens have its bytes or its characters.

import { SIGNS } from "./texts.js";

const BYTES = /(?:<0x[0-9A-F]{2}>)+/g;
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decode bytes; those that make no character are written as <0xE7>. */
function decoded(given) {
  const bytes = Uint8Array.from(given);
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const size = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    try {
      text += STRICT.decode(bytes.subarray(at, at + size));
      at += size;
    } catch {
      text += `<0x${bytes[at].toString(16).toUpperCase().padStart(2, "0")}>`;
      at++;
    }
  }
  return text;
}

const PART = /(<0x[0-9A-F]{2}>)/;
const [ENDS_IN_PART, BEGINS_IN_PART] = [/<0x[0-9A-F]{2}>$/, /^<0x[0-9A-F]{2}>/];
const [ENDS_IN_SIGN, BEGINS_IN_SIGN] = [/\u200d$/u, /^[\p{M}\p{Emoji_Modifier}\u200d]/u];

/** Write the tokens of a run as bytes: the signs that these make, each with the first and the last token that has bytes of it. */
function signsIn(texts) {
  const encoder = new TextEncoder();
  const owners = [];
  const bytes = texts.flatMap((text, n) =>
    text.split(PART).flatMap((piece) => {
      const found = PART.test(piece) ? [parseInt(piece.slice(3, 5), 16)] : [...encoder.encode(piece)];
      found.forEach(() => owners.push(n));
      return found;
    }),
  );
  let at = 0;
  return Array.from(decoded(bytes).matchAll(SIGNS), ([sign]) => {
    const from = at;
    at += BEGINS_IN_PART.test(sign) ? 1 : encoder.encode(sign).length;
    return { sign, from: owners[from], to: owners[at - 1] };
  });
}

/** List the tokens that share signs, run by run: from which, how many, and the signs in them. */
function sharedSigns(tokens) {
  const texts = tokens.map(({ text }) => text);
  const isWithin = (n) => {
    const [before, text] = [texts[n - 1], texts[n]];
    return (ENDS_IN_PART.test(before) && BEGINS_IN_PART.test(text)) || (!beginsWord(tokens, n) && (ENDS_IN_SIGN.test(before) || BEGINS_IN_SIGN.test(text)));
  };
  const runs = [];
  for (let from = 0, to; from < texts.length; from = to) {
    to = from + 1;
    while (to < texts.length && isWithin(to)) to++;
    if (to > from + 1) runs.push({ first: from, size: to - from, signs: signsIn(texts.slice(from, to)) });
  }
  return runs;
}

/** Give the texts of tokens side by side: a sign that several share is the text of the token that begins it; null of those that only go on. */
export function sideBySide(tokens) {
  const texts = tokens.map(({ text }) => text);
  for (const { first, size, signs } of sharedSigns(tokens)) {
    const written = Array(size).fill("");
    for (const { sign, from } of signs) written[from] += sign;
    texts.splice(first, size, ...written.map((text) => text || null));
  }
  return texts;
}

/** Say of each token that is written in bytes of which signs these are a part; "" of all others. */
export function signsHeldBy(tokens) {
  const parts = tokens.map(() => "");
  for (const { first, signs } of sharedSigns(tokens))
    for (const { sign, from, to } of signs)
      if (from < to) for (let n = from; n <= to; n++) if (PART.test(tokens[first + n].text)) parts[first + n] += sign;
  return parts;
}

/** Whether a token begins a word; if words are not known, every token does. */
export const beginsWord = (tokens, n) => !n || tokens[n].word === null || tokens[n].word !== tokens[n - 1].word;

/** Join the texts of the tokens of a word, without continuation marks, and with characters whole again. */
export function joined(texts) {
  const text = texts.map((text, i) => (i && text.length > 2 && text.startsWith("##") ? text.slice(2) : text)).join("");
  return texts.length > 1 ? text.replace(BYTES, (written) => decoded(written.match(/[0-9A-F]{2}(?=>)/g).map((hex) => parseInt(hex, 16)))) : text;
}
