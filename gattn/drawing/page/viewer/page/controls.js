// Shows the state in the controls, and sets the colours of the style sheet.

import { number, several, withoutShared, worded } from "../heads/texts.js";
import { SHOWN, nameOf, viewsOf, weightsOf, withPin } from "../heads/state.js";
import { cssOf } from "../scenes/colours.js";
import { $, element, host } from "./elements.js";
import { titleText } from "./describing.js";
import { placeChosen, placesFound } from "./finding.js";
import { fillTexts } from "../tokens/choosing.js";

const NO_WORDS = "Unknown here: the tokens came without a tokenizer, or from ids that do not encode a text";
const partsReason = (sides) => (sides.some(({ words }) => words) ? "Each word is one token here" : NO_WORDS);
const specialReason = (sides) => (sides.some(({ words }) => words) ? "There are no special tokens here" : NO_WORDS);

/** Pass the colours of the look to the style sheet. */
export function dress(page) {
  const { dataset, style } = host.frame;
  dataset.theme = page.look.name;
  for (const [name, colour] of Object.entries(cssOf(page.look))) style.setProperty(`--${name}`, colour);
}

/** Title the picture that is shown. */
export function fillTitle(page) {
  $("head-title").textContent = titleText(page);
  $("view").setAttribute("aria-label", `${page.state.view === "circuit" ? "edges of the circuit" : several(page.stack.noun)}: choose one with the arrow keys`);
}

/** Show which heads are pinned, each with a button that unpins it. */
function fillPins(page) {
  const { state, stack } = page;
  const names = state.pins ?? [];
  const isPinned = names.includes(nameOf(state));
  $("pin").textContent = isPinned ? "Unpin" : "Pin";
  $("pin").setAttribute("aria-pressed", String(isPinned));
  $("pins").hidden = stack.graphs.length < 2 || state.view === "circuit";
  $("overlay-control").hidden = !page.canOverlay;
  $("overlay").checked = state.overlay;
  if ($("pinned").dataset.names === names.join()) return;
  $("pinned").dataset.names = names.join();
  const buttons = names.map((name) => {
    const button = element("button", { type: "button", "aria-label": `unpin head ${name}` }, `${name} ×`);
    button.addEventListener("click", () => {
      page.update({ pins: withPin(page.state.pins, name) });
      $("pin").focus(); // this button disappears
    });
    return button;
  });
  $("pinned").replaceChildren(...buttons);
}

export function fillControls(page) {
  const { state, stack, circuit } = page;
  const graph = page.shownGraph;
  fillPins(page);
  fillTexts(page);
  const options = (select, names, value) => {
    const labels = names.map(([name, label]) => `${name}=${label}`).join("|");
    if (select.dataset.names !== labels) {
      select.replaceChildren(...names.map(([name, label]) => element("option", { value: name }, label)));
      select.dataset.names = labels;
    }
    select.value = value;
  };
  const plain = (names) => names.map((name) => [name, worded(name)]);
  const stacks = page.traces[0].stacks.map(({ name }) => name);
  options($("stack"), withoutShared(stacks).map((label, n) => [stacks[n], label]), state.stack);
  $("stack").title = state.stack;
  options($("sort"), [["", "layer and head"], ...plain(Object.keys(graph.scores))], state.sort);
  options($("show"), plain(SHOWN), state.show);
  const weights = weightsOf(page.traces, state);
  options($("weight"), plain(state.words ? ["attention"] : weights), state.weight);
  $("stack-control").hidden = stacks.length < 2;
  $("show-control").hidden = page.traces.length < 2;
  $("weight-control").hidden = weights.length < 2;
  for (const button of $("views").children) {
    const isChosen = button.value === state.view;
    button.setAttribute("aria-checked", String(isChosen));
    button.tabIndex = isChosen ? 0 : -1;
    button.disabled = !viewsOf(stack, circuit).includes(button.value);
    button.hidden = ["places", "circuit"].includes(button.value) && !page.traces[0].stacks.some((one) => viewsOf(one, circuit).includes(button.value));
  }
  $("threshold-label").textContent = { difference: "change ≥", "all three": "attention, change ≥" }[state.show] ?? "attention ≥";
  $("threshold").value = String(Math.round(100 * Math.sqrt(state.threshold ?? 0)));
  $("threshold-text").textContent = state.threshold === null && !state.top && state.view !== "matrix" ? "auto" : number(state.threshold ?? 0);
  $("automatic").setAttribute("aria-pressed", String(state.threshold === null && !state.top));
  $("top").value = String(state.top);
  $("top-text").textContent = state.top ? String(state.top) : "all";
  for (const id of ["threshold", "top"]) $(id).setAttribute("aria-valuetext", $(`${id}-text`).textContent);
  for (const id of ["threshold", "automatic", "top"]) $(id).disabled = page.isShaded;
  for (const id of ["edges-control", "tokens-control"]) $(id).hidden = state.view === "circuit";
  const sides = [stack.keys, stack.queries].filter(Boolean);
  const hasParts = sides.some(({ words: of }) => of?.some((word, i) => i && word !== null && word === of[i - 1]));
  $("words").checked = state.words;
  $("words").disabled = !hasParts;
  $("words").closest("label").title = hasParts ? "" : partsReason(sides);
  $("special").checked = state.special;
  $("special").disabled = !sides.some(({ special }) => special.length);
  $("special").closest("label").title = $("special").disabled ? specialReason(sides) : "";
  $("sinks").checked = state.sinks;
  if (host.root.activeElement !== $("search")) $("search").value = state.search;
  const found = placesFound(page);
  const at = placeChosen(page, found);
  $("found").textContent = state.search ? (found.length ? `${at < 0 ? "" : `${at + 1} of `}${found.length}` : "none") : "";
  for (const one of host.root.querySelectorAll(".noun")) one.textContent = stack.noun;
  for (const one of host.root.querySelectorAll(".nouns")) one.textContent = several(stack.noun);
  $("search").placeholder = `Search a ${stack.noun}`;
  $("search").setAttribute("aria-label", `search a ${stack.noun}`);
  $("all").hidden = !state.keys && !state.queries;
  $("theme").textContent = page.look.name === "dark" ? "Light" : "Dark";
}
