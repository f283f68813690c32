// The edges of a circuit: where they are in a head, and what is said of them.

import { count, grouped, isolated, number, visible } from "../heads/texts.js";
import { tokensOf } from "../heads/decoding.js";
import { nodeOf, rowEdges } from "../heads/readings.js";
import { limitText } from "../heads/edges.js";
import { named } from "../scenes/marks.js";

/** Give the tokens of one side of a stack. */
export function tokensOn(stacks, stack, isKeySide) {
  const { keys, queries } = stacks.find(({ name }) => name === stack);
  return tokensOf(isKeySide || !queries ? keys : queries);
}

/** Give the tokens of each band of a circuit, whether it shows them or not. */
export const tokensOfBands = ({ bands }, stacks) => bands.map(({ stack, isKeySide }) => tokensOn(stacks, stack, isKeySide));

/** The edges of a circuit that a head has; none without a circuit. */
export const ofHead = (circuit, { stack, layer, head }) => (circuit?.edges ?? []).filter((edge) => edge.stack === stack && edge.layer === layer && edge.head === head);

/** Find which edges of a head some edges of a circuit are, by the indices of their tokens, and how many are there. */
export function foundIn(head, edges) {
  const marked = new Set();
  let size = 0;
  for (const { query, key } of edges) {
    const [k, row] = [nodeOf(head.keys, key), nodeOf(head.queries, query)];
    if (row < 0) continue;
    const e = rowEdges(head, row).find((one) => head.key[one] === k);
    if (e === undefined) continue;
    marked.add(e);
    size++;
  }
  return { marked, size };
}

/** Add edges to chosen ones, in order. */
export function withMarked(chosen, marked) {
  const all = new Set([...chosen.edges, ...marked]);
  if (all.size === chosen.edges.length) return chosen;
  const rule = [chosen.rule, chosen.limit && limitText(chosen.limit)].filter(Boolean).join(": ");
  return { edges: Uint32Array.from(all).sort(), rule: `${rule ? `${rule} or ` : ""}in the circuit` };
}

/** Say how many edges of a circuit a head has, and how many of them are not marked: hidden, not kept, or too many. */
export function countText(all, marked) {
  if (!all) return "no edge of it is in the circuit";
  return `${count(all, "edge")} in the circuit${all > marked ? `, ${grouped(all - marked)} of them not marked here` : ""}`;
}

/** Write a share for a table. */
export const shareText = (share) => (share && Math.abs(share) < 0.0005 ? "< 0.001" : share.toFixed(3).replace("-", "−"));

export const lossText = (loss, write = number) => (loss === null ? "not measured" : write(loss));

/** Name an edge: its head, and the tokens at its ends. */
export function edgeName({ circuit, bands }, edge) {
  const stack = circuit.isSeveral ? `${edge.stack} ` : "";
  const [key, query] = [edge.from, edge.to].map(([band, , position]) => bands[band][position]);
  return { head: `${stack}${edge.layer}.${edge.head}`, key, query };
}

/** Describe an edge in a sentence. */
export function edgeText(shown, edge) {
  const { head, key, query } = edgeName(shown, edge);
  return `head ${head}: ${isolated(named(query))} reads ${isolated(named(key))}: attention ${number(edge.attention)}, ${shown.circuit.lost} ${lossText(edge.loss)}${edge.why ? `; why: ${visible(edge.why, 400)}` : ""}`;
}
