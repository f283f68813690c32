// Searches a text, also across tokens.

import { visible } from "./texts.js";
import { joined, sideBySide } from "./signs.js";

/** Find all matches in a text, also across tokens: the tokens of each match, in order. */
export function searched(tokens, query) {
  const wanted = query.toLowerCase().trim();
  if (!wanted) return [];
  const places = new Map();
  const whole = sideBySide(tokens).map((text) => text ?? "");
  const plain = tokens.map(({ text }) => text);
  const shown = (texts) => texts.map((text) => text && visible(text, 1e6));
  for (const texts of [shown(whole), shown(plain), whole, plain]) {
    const owners = [];
    let line = "";
    tokens.forEach((token, i) => {
      const isSameWord = i && token.word !== null && token.word === tokens[i - 1].word;
      const own = (isSameWord ? joined(["", texts[i]]) : texts[i]).toLowerCase();
      if (i && !isSameWord) line += " ";
      line += own;
      while (owners.length < line.length) owners.push(i);
    });
    for (let at = line.indexOf(wanted); at >= 0; at = line.indexOf(wanted, at + 1)) {
      const [from, to] = [owners[at], owners[at + wanted.length - 1]];
      if (!places.has(from)) places.set(from, tokens.slice(from, to + 1));
    }
  }
  return [...places.keys()].sort((a, b) => a - b).map((from) => places.get(from));
}
