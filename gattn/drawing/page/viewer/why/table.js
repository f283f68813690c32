// The table of an edge that is asked why: the pairs of parts that its score is a sum of.

import { grouped, number, percent, visible } from "../heads/texts.js";
import { $, element, tokenElement } from "../page/elements.js";
import { named } from "../scenes/marks.js";
import { drawInPlace } from "../scenes/drawing.js";
import { elementBars } from "./bars.js";

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
  $("apart-control").hidden = !page.asked;
  $("apart").value = page.state.apart;
  $("why").hidden = !page.asked && !page.canAsk;
  if (!page.asked) return $("why").replaceChildren(element("p", { class: "note" }, HINT));
  $("why").replaceChildren(tableOfPairs(page.asked));
  if (page.asked.elements) $("why").prepend(pictureOf(page.asked.elements, page.look));
}

/** Draw elements as bars; the table below says the same in numbers. */
function pictureOf(elements, look) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  drawInPlace(canvas, elementBars(elements, look, Math.max(240, $("why").clientWidth)), look);
  return canvas;
}

const HEADERS = {
  parts: { what: "pairs of parts", names: ["query written by", "key written by"] },
  elements: { what: "products of elements", names: ["of the vectors", "query × key"] },
};

function tableOfPairs({ rows, total, query, key, notes, name, apart }, most = FEW_PAIRS) {
  const { what, names } = HEADERS[apart];
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
      more.closest("table").parentElement.replaceWith(tableOfPairs({ rows, total, query, key, notes, name, apart }, most + 100));
      $("why").focus({ preventScroll: true });
    });
    const sum = rest.reduce((all, { score }) => all + score, 0);
    lines.push(element("tr", {}, element("td", { colspan: "2" }, more), ...[`Σ ${number(sum)}`, partText(sum, total)].map((text) => element("td", { class: "value" }, element("small", {}, text))), element("td")));
  }
  const title = element("caption", {}, "why ", ...tokenElement(query), " reads ", ...tokenElement(key), ` in ${name}: score ${number(total)}, the sum of ${grouped(rows.length)} ${what}`);
  const header = [...names, "score", "share"].map((text, n) => element("th", { scope: "col", class: n > 1 ? "value" : "part" }, text));
  header.push(element("td", { class: "bar" }));
  const made = element("table", { class: apart === "elements" ? "pairs products" : "pairs" }, title, element("thead", {}, element("tr", {}, ...header)), element("tbody", {}, ...lines));
  return element("div", {}, made, element("p", { class: "note" }, visible(notes.join("; "), 400)));
}
