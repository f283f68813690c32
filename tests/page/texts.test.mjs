import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULTS, escaped, fromFragment, number, searched, settled, textWidth, ticks, toFragment, tokensOf, visible } from "./viewer.mjs";

test("numbers carry at most three significant digits", () => {
  const written = { 0: "0", 0.123456: "0.123", 12.345: "12.3", 123456: "123,456", "-0.5": "−0.5", 0.00001234: "1.2e-5" };
  for (const [value, text] of Object.entries(written)) assert.equal(number(Number(value)), text);
  assert.equal(number(NaN), "none");
  assert.equal(number(-Infinity), "none");
});

test("nothing of a token is invisible or acts on the text around it", () => {
  const written = [
    [" the", "the"], ["   ", "␣␣␣"], ["", '""'], ["a\nb", "a↵b"], ["a\0b", "a\\x00b"], ["\x1b[31m", "\\x1b[31m"],
    ["\u202egnp", "U+202E gnp"], ["\u2066x\u2069", "U+2066 x U+2069"], ["\ud800", "U+D800"], ["\u2028", "U+2028"],
    ["\u0301", "◌\u0301"], ["<script>", "<script>"], ["$x^2$", "$x^2$"], ["漢字", "漢字"], ["\t", "\\t"],
  ];
  for (const [token, text] of written) assert.equal(visible(token), text);
});

test("a long token ends in an ellipsis, whole characters only", () => {
  assert.equal(visible("x".repeat(300)), `${"x".repeat(16)}…`);
  assert.equal(visible("🧪".repeat(20), 4), "🧪🧪…");
  assert.equal(visible("x".repeat(16)), "x".repeat(16));
});

test("wide letters are wider than narrow ones", () => {
  assert.ok(textWidth("漢字", 10) > textWidth("ab", 10));
  assert.ok(textWidth("MM", 10) > textWidth("ii", 10));
  assert.equal(textWidth("e\u0301", 10), textWidth("e", 10));
});

test("ticks are round, in order and within the range", () => {
  for (const [low, high] of [[0, 1], [-3.2, 11.9], [0.0012, 0.0049], [-1e6, 2e6], [5, 5]]) {
    const found = ticks(low, high);
    assert.ok(found.length >= 1 && found.length <= 7, `${low} ${high}: ${found}`);
    assert.ok(found.every((tick, i) => tick >= low - 1e-12 && tick <= high + 1e-12 && (!i || tick > found[i - 1])));
  }
});

test("XML holds no markup, no control character and no lone surrogate of a text", () => {
  assert.equal(escaped(`<a b="c">&'`), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
  assert.equal(escaped("a\0b\u001bc\ud800d\uffff🧪"), "a�b�c�d�🧪");
});

test("a fragment says what differs from the default, and gives the state back", () => {
  assert.equal(toFragment(DEFAULTS), "");
  const state = { ...DEFAULTS, view: "matrix", layer: 3, head: 0, token: 7, threshold: 0.05, words: true, search: "a&b=<c>#", keys: [3, 9], show: "all three" };
  assert.deepEqual(fromFragment(`#${toFragment(state)}`), state);
});

test("wrong fragments are the defaults", () => {
  for (const text of ["", "#", "#view=pie&layer=-1&head=1.5&token=x&words=yes&keys=9-3&threshold=-2&theme=red", "#%%%&&=&==", "#layer=99999999999", "#__proto__=1&constructor=2"])
    assert.deepEqual(fromFragment(text), DEFAULTS);
});

test("a state is fitted to what there is", () => {
  const graph = (layer, head, scores = {}) => ({ layer, head, scores, values: { attention: [0, 1], score: [-1, 1] } });
  const keys = { tokens: ["a", "b"] };
  const self = { name: "encoder", layers: [0, 1], heads: [0, 1], keys, queries: null, graphs: [graph(0, 0), graph(0, 1), graph(1, 0, { induction: 0.8 })] };
  const cross = { name: "cross", layers: [0], heads: [0], keys, queries: { tokens: ["c", "d", "e"] }, graphs: [graph(0, 0)] };
  const traces = [{ stacks: [self, cross] }];
  const fit = (state) => settled({ ...DEFAULTS, ...state }, traces);
  assert.deepEqual([fit({}).layer, fit({}).head], [1, 0], "opens with the induction head");
  assert.deepEqual([fit({ layer: 0, head: 9 }).layer, fit({ layer: 0, head: 9 }).head], [0, 0]);
  assert.equal(fit({ token: 2 }).token, null);
  assert.equal(fit({ stack: "cross", side: "query", token: 2 }).token, 2);
  assert.equal(fit({ stack: "cross", view: "layered" }).view, "arcs");
  assert.equal(fit({ weight: "__proto__" }).weight, "attention");
  assert.equal(fit({ weight: "score" }).weight, "score");
  assert.equal(fit({ weight: "score", words: true }).weight, "attention", "scores do not merge");
  assert.equal(fit({ sort: "constructor" }).sort, "");
  assert.deepEqual(fit({ keys: [1, 200] }).keys, [1, 2]);
  for (const keys of [[100, 200], [0, 2], [0, 99]]) assert.equal(fit({ keys }).keys, null, "a range of nothing is as usual");
  assert.deepEqual(fit({ stack: "cross", queries: [1, 3] }).queries, [1, 3]);
  assert.equal(fit({ stack: "nowhere" }).stack, "encoder");
  assert.equal(fit({ show: "difference" }).show, "before", "one trace is not compared");
});

test("a search finds what goes over several tokens, each place once", () => {
  const tokens = tokensOf({
    tokens: ["<s>", "A", "##lice", "gave", "the", "book", "B", "##ob", "a\nb", "\n"],
    positions: [...Array(10).keys()],
    words: [null, 0, 0, 1, 2, 3, 4, 4, 5, 6],
    special: [0],
  });
  const found = (query) => searched(tokens, query).map((some) => some.map(({ index }) => index));
  assert.deepEqual(found("Bob"), [[6, 7]]);
  assert.deepEqual(found("the book"), [[4, 5]]);
  assert.deepEqual(found("the "), [[4]]);
  assert.deepEqual(found("li"), [[2]]);
  assert.deepEqual(found("e b"), [[4, 5]]);
  assert.deepEqual(found("↵"), [[8], [9]]);
  assert.deepEqual(found("<S>"), [[0]]);
  assert.deepEqual(found("cat"), []);
  assert.deepEqual(found(""), []);
});
