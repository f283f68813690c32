// The controls of what is told of tokens: which parts of the text are in view, and what tokens are coloured by.

import { percent, several, spelled, visible } from "../heads/texts.js";
import { alone } from "../heads/directions.js";
import { $, element } from "../page/elements.js";
import { pairInView, sharesOf, spanName } from "./spans.js";

function fillOptions(select, options, value) {
  const labels = JSON.stringify(options);
  if (select.dataset.names !== labels) {
    select.replaceChildren(...options.map(([name, label]) => element("option", { value: name }, label)));
    select.dataset.names = labels;
  }
  select.value = value;
}

/** Fill the chooser of texts, if there are several. */
export function fillTexts(page) {
  const { texts, state } = page;
  $("text-control").hidden = texts.length < 2;
  if (texts.length < 2) return;
  const titled = ({ name, traces }, n) => [`${n + 1} of ${texts.length}`, name && alone(visible(name, 80)), alone(visible(traces[0].stacks[0].text, 60))].filter(Boolean).join(" · ");
  fillOptions($("text"), texts.map((one, n) => [String(n), titled(one, n)]), String(state.text));
  $("text-before").disabled = !state.text;
  $("text-after").disabled = state.text === texts.length - 1;
}

/** Show another text, and no token of it. */
export function openText(page, text) {
  if (text < 0 || text >= page.texts.length || text === page.state.text) return;
  page.update({ text, token: null, level: null, edge: null, why: null, keys: null, queries: null });
}

/** Say what a part of the text is: its first tokens. */
function spanText({ keyTokens }, [from, to], n, limit) {
  const few = keyTokens.slice(from, Math.min(to, from + 8)).map((token) => spelled(token, 16));
  return `${spanName(n)}: ${alone(visible(`${few.join(" ")}${to - from > 8 ? " …" : ""}`, limit))}`;
}

/** Fill the controls once the heads in view are known. */
export function fillTokenControls(page) {
  const { spans, colours } = page.stack;
  $("parts-control").hidden = !spans.length || page.isWhole;
  $("colour-control").hidden = !Object.keys(colours).length || page.isWhole;
  fillOptions($("colour"), [["", "none"], ...Object.keys(colours).map((name) => [name, visible(name, 40)])], page.state.colour);
  if (!spans.length) return;
  const [head] = page.heads;
  const shares = head.isChange ? null : sharesOf(head, spans);
  const said = (a, b) => (shares && Number.isFinite(shares[a][b]) ? `: ${percent(shares[a][b], 1)}` : "");
  const pairs = spans.flatMap((_, a) => spans.map((__, b) => [`${a}-${b}`, `${spanName(a)} reads ${spanName(b)}${said(a, b)}`]));
  const isOther = page.state.keys || page.state.queries;
  const chosen = pairInView(spans, page.state);
  fillOptions($("parts"), [["", `${isOther && !chosen ? "other" : "all"} ${several(page.stack.noun)}`], ...pairs], chosen);
  const told = (limit) => spans.map((span, n) => spanText(page.stackOf(0), span, n, limit));
  $("parts-control").title = told(200).join("\n");
  $("parts-text").textContent = spans.length < 4 ? told(41).join(" · ") : "";
}

export function listenToTokenControls(page) {
  $("parts").addEventListener("change", () => {
    const { spans } = page.stack;
    const [reader, read] = $("parts").value.split("-");
    page.update($("parts").value ? { queries: spans[reader], keys: spans[read] } : { queries: null, keys: null });
  });
  $("colour").addEventListener("change", () => page.update({ colour: $("colour").value }));
  $("text").addEventListener("change", () => openText(page, Number($("text").value)));
  $("text-before").addEventListener("click", () => openText(page, page.state.text - 1));
  $("text-after").addEventListener("click", () => openText(page, page.state.text + 1));
}
