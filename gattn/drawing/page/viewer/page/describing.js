// Describes the text, the model and the heads in the header.

import { count, grouped, visible } from "../heads/texts.js";
import { nameOf } from "../heads/state.js";
import { alone } from "../heads/directions.js";
import { $, element } from "./elements.js";

/** List the different texts among some. */
const distinct = (texts) => [...new Set(texts)].filter(Boolean).map((text) => visible(text, 80)).join(" and ");

const keepOf = ({ edges, totalEdges, keep }) => (edges === totalEdges ? "all edges kept" : keep ? `edges kept: ${keep}` : "some edges kept");

/** Say how many edges some graphs have, if any were dropped. */
export function keptText(graphs) {
  const [edges, all] = ["edges", "totalEdges"].map((name) => graphs.reduce((sum, graph) => sum + graph[name], 0));
  return edges < all ? `${distinct(graphs.map(keepOf))}, ${grouped(edges)} of ${count(all, "edge")}` : "";
}

export function headText(graph) {
  const shared = graph.keyValueHead === null ? "" : ` · key-value head ${graph.keyValueHead}`;
  const inCircuit = graph.circuitEdges ? ` · ${count(graph.circuitEdges, "edge")} in the circuit` : "";
  return `${graph.name}${shared}${graph.label ? `: ${graph.label}` : ""}${inCircuit}`;
}

/** Say of which heads the layered view shows the mean. */
export function meanText({ places, state: { pins } }) {
  if (!pins) return "mean over heads";
  const names = places.map(nameOf);
  return names.length === 1 ? `head ${names[0]} alone` : `in each layer the mean over heads ${names.join(", ")}`;
}

/** Title the view. */
export function titleText(page) {
  const { state: { view, overlay }, stack, circuit, places } = page;
  if (view === "circuit") return `circuit: ${visible(circuit.title, 200)}`;
  if (view === "layered") return `${stack.name}: all layers, ${meanText(page)}`;
  if (places.length === 1) return headText(page.shownGraph);
  return `heads ${places.map(nameOf).join(", ")}${overlay && page.canOverlay ? " over each other" : ""}`;
}

export function editsText(page) {
  const { edits, edited } = page.header;
  return [edits && `edits: ${visible(edits, 200)}`, edited && visible(edited, 200)].filter(Boolean).join(" · ");
}

/** What stands between the keys and the queries of a title. */
const ARROW = " → ";

/** Describe the text and the shown graphs; if two runs differ, both. */
export function describe(page) {
  const { keyTokens, queryTokens, layers, heads } = page.stackOf(0);
  const text = page.stack.text ? visible(page.stack.text, 150) : "gattn";
  $("title").textContent = queryTokens ? text.split(ARROW).map(alone).join(ARROW) : text;
  $("title").dir = queryTokens ? "ltr" : "auto";
  const generated = [...keyTokens, ...(queryTokens ?? [])].filter((token) => token.generated).length;
  const size = queryTokens ? `${count(queryTokens.length, "query")} on ${count(keyTokens.length, "key")}` : count(keyTokens.length, page.stack.noun);
  const graphs = page.shownGraphs.flat();
  const all = page.stack.graphs.length;
  const { stacks } = page.traces[0];
  const shape = all === layers.length * heads.length ? `${count(layers.length, "layer")} × ${count(heads.length, "head")}` : `${count(all, "head")} in ${count(layers.length, "layer")}`;
  const facts = [
    page.traces.length > 1 && "before and after",
    editsText(page),
    distinct(page.traces.map(({ model }) => model)),
    stacks.length > 1 ? `${visible(page.stack.name, 200)}: ${shape}` : shape,
    size + (generated ? `, the last ${generated} generated` : ""),
    ...["weightFunction", "normalizer"].map((name) => distinct(graphs.map((graph) => graph[name]))),
    distinct(graphs.map(keepOf)),
  ];
  $("facts").textContent = facts.filter(Boolean).join(" · ");
  const notes = [...page.header.notes, `made by gattn ${page.header.version}; this file makes no network requests`];
  $("notes").replaceChildren(...notes.map((note) => element("li", {}, visible(note, 400))));
}
