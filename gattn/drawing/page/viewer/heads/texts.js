// Writes numbers and tokens as text, and estimates its width.

/** Write a number with at most three significant digits. */
export function number(value) {
  if (!Number.isFinite(value)) return "none";
  const size = Math.abs(value);
  const text =
    size && size < 1e-4 ? size.toExponential(1)
    : size >= 1000 ? grouped(Math.round(size))
    : String(Number(size.toPrecision(3)));
  return value < 0 && Number(size.toPrecision(3)) ? `−${text}` : text;
}

/** Write a whole number with commas between thousands. */
export const grouped = (size) => size.toLocaleString("en");

/** Write a share of a whole in percent. */
export const percent = (part, whole) => `${Number(((100 * part) / whole).toPrecision(3))} %`;

export const count = (size, name) => `${grouped(size)} ${name}${size === 1 ? "" : "s"}`;

const NAMED = new Map([["\n", "↵"], ["\t", "\\t"], ["\r", "\\r"]]);

function piece(character) {
  if (NAMED.has(character)) return NAMED.get(character);
  const code = character.codePointAt(0);
  if (/\p{Cc}/u.test(character)) return `\\x${code.toString(16).padStart(2, "0")}`;
  const isHidden = /\p{C}/u.test(character) || (/\p{Z}/u.test(character) && character !== " ");
  return isHidden ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}` : character;
}

/** Write a token so that nothing in it is invisible or affects the text around it. */
export function visible(token, limit = 16) {
  if (!token) return '""';
  const stripped = token.replace(/^ +| +$/g, "");
  let text = /^\p{M}/u.test(stripped) ? "◌" : "";
  let before = "";
  for (const character of stripped || "␣".repeat(token.length)) {
    const shown = piece(character);
    const isApart = before && (shown.length > 4 || before.length > 4);
    if (text && text.length + shown.length > limit) return `${text}…`;
    text += isApart ? ` ${shown}` : shown;
    before = shown;
  }
  return text;
}

/** Write a token; a virtual one is written as it is. */
export const spelled = (token, limit) => (token.virtual ? token.text : visible(token.text, limit));

/** Isolate the writing direction of a token from the rest of the line. */
export const isolated = (text) => `\u2068${text}\u2069`;

/** Estimate the width of a line of text. */
export function textWidth(text, size) {
  let width = 0;
  for (const character of text) {
    const code = character.codePointAt(0);
    if ((code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xfe00) || code > 0x1f000) width += 1;
    else if ("ijlI.,:;'|!()[]- ".includes(character)) width += 0.36;
    else if ("mwMW…%@<>=+~".includes(character)) width += 0.88;
    else width += /\p{M}/u.test(character) ? 0 : /\p{Lu}|\d/u.test(character) ? 0.68 : 0.6;
  }
  return width * size;
}

/** Choose about four round numbers from low to high. */
export function ticks(low, high) {
  if (!(high > low)) return [low];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(3)));
  return found;
}
