// The edges of a head as lines, and its tokens as nodes.

import { number } from "../heads/texts.js";
import { indexOf, ranked, readingsOf, strengthOf } from "../heads/readings.js";
import { hueText } from "./colours.js";
import { curvesMark } from "./marks.js";

const MOST_OWN = 30;

/** List the edges to draw, the weakest first: of one head, or of all that are drawn over each other. */
export function linesOf(picture) {
  if (!picture.overlaid) return linesOfHead(picture);
  const all = picture.overlaid.flatMap((one) => linesOfHead({ ...picture, ...one }).map((line) => ({ ...line, hue: one.hue, name: one.name })));
  const rank = ({ kind }) => (kind === "faint" ? 0 : 1);
  const size = ({ value }) => picture.scale.place(Number.isFinite(value) ? value : picture.scale.low);
  return all.sort((a, b) => rank(a) - rank(b) || size(a) - size(b));
}

/** List the edges of a head to draw: the chosen ones and, with a focus, its own strongest ones. */
function linesOfHead({ head, chosen, focus, weight, threshold, marked = new Set() }) {
  const { row } = indexOf(head);
  const value = head.values[weight];
  const as = (e, kind) => ({ e, row: row[e], key: head.key[e], value: value[e], kind, isMarked: marked.has(e) });
  if (!focus) return ranked([...chosen.edges], strengthOf(head, weight)).reverse().map((e) => as(e, "plain"));
  const { reads, readBy } = readingsOf(head, focus, weight);
  const isChosen = new Set(chosen.edges);
  const passes = ({ e }, n) => isChosen.has(e) || (n < MOST_OWN && Math.abs(head.values.attention[e]) >= (threshold ?? 0));
  const mine = (readings, kind) => readings.filter(passes).reverse().map((reading) => ({ ...reading, kind, isAdded: !isChosen.has(reading.e), isMarked: marked.has(reading.e) }));
  const others = [...chosen.edges].filter((e) => row[e] !== focus.row && head.key[e] !== focus.key);
  return [...others.map((e) => as(e, "faint")), ...mine(readBy.filter((reading) => reading.row !== focus.row), "readBy"), ...mine(reads, "reads")];
}

export const added = (lines) => lines.filter(({ isAdded }) => isAdded).length;

/** Draw lines as curves, those of the circuit on a bright ground: those that miss the focus are one faint mark, all others have their colour and width. */
export function lineMarks({ scale, look, weight }, lines, pointsOf) {
  const faint = lines.filter(({ kind }) => kind === "faint").map(pointsOf);
  const clear = lines.filter(({ kind }) => kind !== "faint");
  const marks = faint.length ? [curvesMark(faint, look.faint, 0.8)] : [];
  for (const line of lines)
    if (line.isMarked) marks.push(curvesMark([pointsOf(line)], look.mark, Math.max(0.7, scale.width(line.value) || 0) + 6, { title: "in the circuit" }));
  for (const line of clear) {
    const shown = Number.isFinite(line.value) ? line.value : scale.low;
    const dash = line.kind === "readBy" ? { dash: [5, 3] } : {};
    const colour = line.hue ? hueText(line.hue, shown, scale, look, true) : scale.colour(shown, look, true);
    marks.push(curvesMark([pointsOf(line)], colour, Math.max(0.7, scale.width(shown)), { ...dash, title: `${line.name ? `${line.name}: ` : ""}${weight} ${number(line.value)}` }));
  }
  return marks;
}

/** The clear links of the focus: keys that it reads, rows that read it. */
export function linked(lines) {
  const clear = lines.filter(({ isClear }) => isClear);
  return {
    keys: new Set(clear.filter(({ kind }) => kind === "reads").map(({ key }) => key)),
    rows: new Set(clear.filter(({ kind }) => kind === "readBy").map(({ row }) => row)),
  };
}

export const directions = (focus) => (focus ? "solid: what it reads; dashed: what reads it" : "key → query");
export const firstGenerated = (tokens) => tokens.findIndex((token) => token.generated);

/** The nodes of a head: its keys, in cross-attention followed by its queries; `place` gives the key and row of one. */
export function nodesOf(head) {
  const keys = head.keys.length;
  if (head.rowNode) return { tokens: head.keys, ofRow: (row) => head.rowNode[row], place: (node) => ({ key: node, row: indexOf(head).rowOf[node] }) };
  const place = (node) => (node < keys ? { key: node, row: -1 } : { key: -1, row: node - keys });
  return { tokens: [...head.keys, ...head.queries], ofRow: (row) => keys + row, place };
}

export const isSame = (place, focus) => (place.key >= 0 && place.key === focus.key) || (place.row >= 0 && place.row === focus.row);
