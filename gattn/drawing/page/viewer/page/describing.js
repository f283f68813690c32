// Describes the text, the model and the heads in the header.

import { count, grouped, visible } from "../heads/texts.js";
import { $ } from "./elements.js";

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

export function editsText(page) {
  const { edits, edited } = page.header;
  return [edits && `edits: ${visible(edits, 200)}`, edited && visible(edited, 200)].filter(Boolean).join(" · ");
}

/** Describe the text and the shown graphs; if two runs differ, both. */
export function describe(page) {
  const { keyTokens, queryTokens, layers, heads } = page.stackOf(0);
  $("title").textContent = page.stack.text ? visible(page.stack.text, 150) : "gattn";
  const generated = [...keyTokens, ...(queryTokens ?? [])].filter((token) => token.generated).length;
  const size = queryTokens ? `${count(queryTokens.length, "query").replace("querys", "queries")} on ${count(keyTokens.length, "key")}` : count(keyTokens.length, "token");
  const graphs = page.shownGraphs.flat();
  const facts = [
    page.traces.length > 1 && "before and after",
    editsText(page),
    distinct(page.traces.map(({ model }) => model)),
    `${count(layers.length, "layer")} × ${count(heads.length, "head")}`,
    size + (generated ? `, the last ${generated} generated` : ""),
    ...["weightFunction", "normalizer"].map((name) => distinct(graphs.map((graph) => graph[name]))),
    distinct(graphs.map(keepOf)),
  ];
  $("facts").textContent = facts.filter(Boolean).join(" · ");
}
