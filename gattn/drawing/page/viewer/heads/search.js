// Searches a text, also across tokens.

import { visible } from "./texts.js";
import { joined } from "./regrouping.js";

/** Find all matches in a text, also across tokens: the tokens of each match, in order. */
export function searched(tokens, query) {
  const wanted = query.toLowerCase().trim();
  if (!wanted) return [];
  const places = new Map();
  for (const write of [(text) => visible(text, 1e6), (text) => text]) {
    const owners = [];
    let line = "";
    tokens.forEach((token, i) => {
      const isSameWord = i && token.word !== null && token.word === tokens[i - 1].word;
      const own = write(isSameWord ? joined(["", token.text]) : token.text).toLowerCase();
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
