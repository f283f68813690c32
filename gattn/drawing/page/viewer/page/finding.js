// Searches tokens, and steps through the matches.

import { searched } from "../heads/search.js";

/** The nodes of a head that contain a part of a match. */
export function matchesIn(page, head) {
  const { keyTokens, queryTokens } = page.stackOf(0);
  const among = (nodes, tokens) => {
    const found = new Set(searched(tokens, page.state.search).flat().map(({ index }) => index));
    return nodes.filter((node) => !node.virtual && tokens.slice(node.index, (node.last ?? node.index) + 1).some(({ index }) => found.has(index)));
  };
  return [...among(head.keys, keyTokens), ...among(head.queries, queryTokens ?? keyTokens)];
}

/** The places of all matches, in order. */
export function placesFound(page) {
  const { keyTokens, queryTokens } = page.stackOf(0);
  const isSeen = (first, before) => page.state.words && before && first.word !== null && first.word === before.word;
  const of = (tokens, side) =>
    searched(tokens, page.state.search)
      .map(([first]) => first)
      .filter((first, n, all) => !isSeen(first, all[n - 1]))
      .map(({ index }) => ({ token: index, side }));
  return [...of(keyTokens, "key"), ...of(queryTokens ?? [], "query")];
}

/** Which of the places found is the chosen token or, if words merge, its word. */
export function placeChosen(page, found) {
  const { words, side, token } = page.state;
  const { keyTokens, queryTokens } = page.stackOf(0);
  const tokens = side === "query" && queryTokens ? queryTokens : keyTokens;
  const word = words ? (tokens[token]?.word ?? null) : null;
  return found.findIndex((one) => one.side === side && (one.token === token || (word !== null && tokens[one.token].word === word)));
}

export function stepTo(page, by) {
  const found = placesFound(page);
  if (!found.length) return;
  const at = placeChosen(page, found);
  page.chooseToken(found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length]);
}
