// What the model predicted: how probable a token was, and which tokens it expected.

import { isolated, number, visible } from "../heads/texts.js";
import { named } from "../scenes/marks.js";
import { element, tokenElement } from "../page/elements.js";

/** Write a token of the vocabulary; a space that begins a word is seen. */
const inVocabulary = (name) => visible(name.replace(/^ (?=.)/, "␣"), 40);

/** Say how probable a token was, and which position says so; "" if none does. */
export function probabilityText({ shift, probability }, tokens, index) {
  const known = probability[index] ?? null;
  if (known === null) return "";
  return `probability ${number(known)}, ${shift ? `predicted at position ${tokens[index - shift].position}` : "predicted in its own place"}`;
}

/** List what the model predicted at the token in focus, in each run that is shown. */
export function predictionTables(page) {
  const focus = page.heads?.[0] && page.lookedAt(page.heads[0]);
  if (!focus || page.stack.queries || page.isWhole) return [];
  const token = focus.row >= 0 ? page.heads[0].queries[focus.row] : page.heads[0].keys[focus.key];
  if (token.virtual) return [];
  return page.shownTraces.flatMap((trace) => {
    const { predictions, keyTokens } = page.stackOf(trace);
    const suffix = page.shownTraces.length > 1 ? ` (${["before", "after"][trace]})` : "";
    return predictions ? [predictedTable(predictions, keyTokens, token, suffix)] : [];
  });
}

function predictedTable(predictions, tokens, token, suffix) {
  const { shift, likeliest } = predictions;
  const last = token.last ?? token.index;
  const line = (name, share, place = "", where = "") => {
    const bar = element("i");
    bar.style.width = `${100 * (share ?? 0)}%`;
    return element("tr", {}, element("td", {}, element("small", {}, place), element("bdi", {}, name), element("small", {}, where)), element("td", { class: "value" }, share === null ? "none" : number(share)), element("td", { class: "bar", "aria-hidden": "true" }, bar));
  };
  const lines = likeliest[last].map(([name, share]) => line(inVocabulary(name), share));
  if (!lines.length) lines.push(element("tr", {}, element("td", {}, element("small", {}, "the model gave no logits here"))));
  const told = tokens[last + shift];
  if (shift && told && lines.length) lines.push(line(visible(told.text, 40), predictions.probability[last + shift] ?? null, `${told.position} `, " · in the text"));
  const own = token.last === undefined ? probabilityText(predictions, tokens, token.index) : "";
  const place = token.last === undefined ? "its place" : `the place of ${isolated(named(tokens[last]))}`;
  const title = element("caption", {}, ...tokenElement(token), shift ? ` predicts the next token${suffix}` : `: what the model predicts in ${place}${suffix}`);
  if (own) title.append(element("small", { class: "own" }, `${shift ? "its own " : ""}${own}`));
  return element("table", { class: "predicted" }, title, element("tbody", {}, ...lines));
}
