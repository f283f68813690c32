// Writes numbers and tokens as text, and estimates its width.

/** Write the name of a column in words. */
export function worded(name) {
  return name.replace("_for_90", "_for_90_%").replaceAll("_", " ");
}

/** Leave out the modules that the paths of all stacks begin with. */
export function withoutShared(names) {
  const paths = names.map((name) => name.split("."));
  let shared = 0;
  while (paths.every((path) => shared + 1 < path.length && path[shared] === paths[0][shared])) shared++;
  return shared ? paths.map((path) => `….${path.slice(shared).join(".")}`) : names;
}

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

/** Write "tokens", "patches", "queries". */
export const several = (noun) => ({ patch: "patches", query: "queries" })[noun] ?? `${noun}s`;

export const count = (size, noun) => `${grouped(size)} ${size === 1 ? noun : several(noun)}`;

const NAMED = new Map([["\n", "↵"], ["\t", "\\t"], ["\r", "\\r"]]);

function piece(character) {
  if (NAMED.has(character)) return NAMED.get(character);
  const code = character.codePointAt(0);
  if (/\p{Cc}/u.test(character)) return `\\x${code.toString(16).padStart(2, "0")}`;
  const isHidden = /\p{C}/u.test(character) || (/\p{Z}/u.test(character) && character !== " ");
  return isHidden ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}` : character;
}

/** What is one sign to a reader: a flag, a character with its marks, emoji that are joined to one; a byte that is none. */
export const SIGNS = /<0x[0-9A-F]{2}>|\p{Regional_Indicator}{2}|[^](?:[\p{M}\p{Emoji_Modifier}]|[\u200c\u200d]\p{Extended_Pictographic}?)*/gu;
const CURSIVE = "[\\p{Script=Arabic}\\p{Script=Syriac}\\p{Script=Devanagari}\\p{Script=Bengali}\\p{Script=Tamil}\\p{Script=Telugu}\\p{Script=Kannada}\\p{Script=Malayalam}\\p{Script=Sinhala}]";
const EMOJI = "[\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f]";

/** Joiners that do what they are for: between emoji, or between letters of a script whose letters they shape. */
const JOINERS = new RegExp(`(?<=${EMOJI})\\u200d(?=\\p{Extended_Pictographic})|(?<=${CURSIVE})[\\u200c\\u200d](?=${CURSIVE})`, "gu");

/** Write a token so that nothing in it is invisible or affects the text around it. */
export function visible(token, limit = 16) {
  if (!token) return '""';
  const stripped = token.replace(/^ +| +$/g, "") || "␣".repeat(token.length);
  const joiners = new Set(Array.from(stripped.matchAll(JOINERS), ({ index }) => index));
  let text = /^\p{M}/u.test(stripped) ? "◌" : "";
  let [before, at] = ["", 0];
  for (const [sign] of stripped.matchAll(SIGNS)) {
    let own = "";
    for (const character of sign) {
      const shown = joiners.has(at) ? character : piece(character);
      own += before && (shown.length > 4 || before.length > 4) ? ` ${shown}` : shown;
      before = shown;
      at += character.length;
    }
    if (text && text.length + own.length > limit) return `${text}…`;
    text += own;
  }
  return text;
}

/** Write a token; a virtual one is written as it is. */
export const spelled = (token, limit) => (token.virtual ? token.text : visible(token.text, limit));

/** Name the character that a token's bytes are a part of, if they are. */
export const partSaid = (token) => token.partOf && `part of ${visible(token.partOf)}`;

/** Isolate the writing direction of a token from the rest of the line. */
export const isolated = (text) => `\u2068${text}\u2069`;

/** Write a text from right to left, whatever is around it: its punctuation, too. */
export const fromRight = (text) => `\u2067${text}\u2069`;

let measured = null;

/** Measure widths by a function of a text, in units of its size, instead of estimating them. */
export const measureWith = (measure) => (measured = measure);

/** Tell the width of a line of text. */
export function textWidth(text, size, isBold = false) {
  if (measured) return measured(text, isBold) * size;
  let width = 0;
  for (const character of text) {
    const code = character.codePointAt(0);
    if ((code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xfe00) || code > 0x1f000) width += 1;
    else if ("ijlI.,:;'|!()[]- ".includes(character)) width += 0.36;
    else if ("mwMW…%@<>=+~".includes(character)) width += 0.88;
    else width += /\p{M}/u.test(character) ? 0 : /\p{Lu}|\d/u.test(character) ? 0.68 : 0.6;
  }
  return width * size * (isBold ? 1.1 : 1);
}

/** Cut a line of text so that it fits a width, in bold, too. */
export function cutTo(text, wide, size) {
  if (textWidth(text, size, true) <= wide) return text;
  const signs = [...text.replace(/…$/, "")];
  while (signs.length > 1 && textWidth(`${signs.join("")}…`, size, true) > wide) signs.pop();
  return `${signs.join("")}…`;
}

/** Choose about four round numbers from low to high, never fewer than two. */
export function ticks(low, high) {
  if (!(high > low)) return [low];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const at = [1, 2, 5, 10].findIndex((factor) => factor * power >= rough);
  const found = multiples([1, 2, 5, 10][at] * power, low, high);
  return found.length > 1 ? found : multiples([0.5, 1, 2, 5][at] * power, low, high);
}

/** The multiples of a step from low to high. */
function multiples(step, low, high) {
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(3)));
  return found;
}
