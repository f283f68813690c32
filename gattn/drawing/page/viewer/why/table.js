// The table of an edge that is asked why: the pairs of parts that its score is a sum of.

import { grouped, number, percent, visible } from "../heads/texts.js";
import { $, element, tokenElement } from "../page/elements.js";
import { named } from "../scenes/marks.js";

const FEW_PAIRS = 12;
const HINT = "To ask why an edge has its score, click its cell in the matrix, or “why” beside it in the tables.";

const partText = (score, total) => (total ? percent(score, total).replace("-", "−") : "");

/** A button that asks about an edge. */
export function askButton(page, { row, key }) {
  const button = element("button", { type: "button", "aria-label": `why ${named(row)} reads ${named(key)}` }, "why");
  button.addEventListener("click", () => {
    page.update({ why: page.pairOf(row, key) });
    $("why").focus({ preventScroll: true }); // this button disappears
  });
  return button;
}

/** Write the table of the edge that is asked about, or how to ask. */
export function fillWhy(page) {
  $("why").hidden = !page.asked && !page.canAsk;
  $("why").replaceChildren(page.asked ? tableOfPairs(page.asked) : element("p", { class: "note" }, HINT));
}

function tableOfPairs({ rows, total, query, key, notes, name }, most = FEW_PAIRS) {
  const largest = Math.abs(rows[0].score);
  const lines = rows.slice(0, most).map((pair) => {
    const bar = element("i", pair.score < 0 ? { class: "minus" } : {});
    bar.style.width = `${largest ? (100 * Math.abs(pair.score)) / largest : 0}%`;
    const parts = ["query", "key"].map((side) => element("td", { class: "part" }, element("bdi", {}, visible(pair[side], 80))));
    const values = [number(pair.score), partText(pair.score, total)].map((text) => element("td", { class: "value" }, text));
    return element("tr", {}, ...parts, ...values, element("td", { class: "bar", "aria-hidden": "true" }, bar));
  });
  const rest = rows.slice(most);
  if (rest.length) {
    const more = element("button", { type: "button" }, element("small", {}, `and ${grouped(rest.length)} more`));
    more.addEventListener("click", () => {
      $("why").replaceChildren(tableOfPairs({ rows, total, query, key, notes, name }, most + 100));
      $("why").focus({ preventScroll: true });
    });
    const sum = rest.reduce((all, { score }) => all + score, 0);
    lines.push(element("tr", {}, element("td", { colspan: "2" }, more), ...[`Σ ${number(sum)}`, partText(sum, total)].map((text) => element("td", { class: "value" }, element("small", {}, text))), element("td")));
  }
  const title = element("caption", {}, "why ", ...tokenElement(query), " reads ", ...tokenElement(key), ` in ${name}: score ${number(total)}, the sum of ${grouped(rows.length)} pairs of parts`);
  const header = ["query written by", "key written by", "score", "share", ""].map((text, n) => element("th", { scope: "col", class: n > 1 ? ["value", "value", "bar"][n - 2] : "part" }, text));
  const made = element("table", { class: "pairs" }, title, element("thead", {}, element("tr", {}, ...header)), element("tbody", {}, ...lines));
  return element("div", {}, made, element("p", { class: "note" }, visible(notes.join("; "), 400)));
}
