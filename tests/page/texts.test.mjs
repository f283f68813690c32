import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULTS, escaped, fromFragment, groupsOf, joined, named as nameOfToken, number, placesOf, searched, settled, sideBySide, textWidth, ticks, toFragment, tokensOf, visible, withPin } from "./viewer.mjs";

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

test("a scale has at least two ticks", () => {
  for (let low = 0; low < 5; low += 0.13) for (const range of [0.9, 4.1, 6, 8.1, 9, 19.9]) assert.ok(ticks(low, low + range).length > 1, `${low} ${range}`);
  assert.deepEqual(ticks(0.3, 9.1), [2, 4, 6, 8]);
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

const named = (texts, words = null) => tokensOf({ tokens: texts, positions: [...texts.keys()], words, special: [] });
const FAMILY = "\u{1f468}\u200d\u{1f469}\u200d\u{1f467}";
const bytesOfText = (text) => [...new TextEncoder().encode(text)].map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);

test("joiners show what they join: emoji families, letters of Arabic; elsewhere they are named", () => {
  assert.equal(visible(FAMILY), FAMILY);
  assert.equal(visible("\u{1f469}\u{1f3fd}\u200d\u{1f680}"), "\u{1f469}\u{1f3fd}\u200d\u{1f680}");
  assert.equal(visible("می\u200cخواهم"), "می\u200cخواهم");
  assert.equal(visible("a\u200db"), "a U+200D b");
  assert.equal(visible("\u200d"), "U+200D");
});

test("a label is never cut within a sign", () => {
  assert.equal(visible(FAMILY.repeat(3), 17), `${FAMILY}${FAMILY}…`);
  assert.equal(visible("\u{1f1e9}\u{1f1ea}".repeat(3), 6), "\u{1f1e9}\u{1f1ea}…");
  assert.equal(visible("e\u0301e\u0301", 3), "e\u0301…");
});

test("merged bytes are characters again, those of incomplete ones stay", () => {
  assert.equal(joined(bytesOfText("你好")), "你好");
  assert.equal(joined(["na", ...bytesOfText("ï"), "ve"]), "naïve");
  assert.equal(joined([...bytesOfText("你").slice(0, 2), "x"]), "<0xE4><0xBD>x");
  assert.equal(joined(["<0xE4>"]), "<0xE4>");
  assert.equal(joined(["wal", "##ked"]), "walked");
});

test("side by side, the token that begins a sign has it whole", () => {
  const written = (texts, words) => sideBySide(named(texts, words));
  assert.deepEqual(written(bytesOfText("你好")), ["你", null, null, "好", null, null]);
  assert.deepEqual(written(["x<0xE4>", "<0xBD><0xA0>y"]), ["x你", "y"]);
  assert.deepEqual(written(bytesOfText(FAMILY)), [FAMILY, ...Array(17).fill(null)]);
  assert.deepEqual(written(["\u{1f468}", "\u200d", "\u{1f469}"], [0, 0, 0]), ["\u{1f468}\u200d\u{1f469}", null, null]);
  assert.deepEqual(written(["e", "\u0301"], [0, 1]), ["e", "\u0301"], "not over the border of a word");
  assert.deepEqual(written(bytesOfText("你").slice(0, 2)), ["<0xE4>", "<0xBD>"]);
  assert.deepEqual(written(["", "a"]), ["", "a"]);
});

test("a token that is a part of a character in bytes names it", () => {
  const parts = (texts, words) => named(texts, words).map(({ partOf }) => partOf);
  assert.deepEqual(parts([...bytesOfText("é"), "x", ...bytesOfText("你")]), ["é", "é", "", "你", "你", "你"]);
  assert.deepEqual(parts(["x<0xE4>", "<0xBD><0xA0>y"]), ["你", "你"]);
  assert.deepEqual(parts(["<0xE4><0xBD>", "<0xA0><0xE5>", "<0xA5><0xBD>"]), ["你", "你好", "好"]);
  assert.deepEqual(parts(["<0xE4>", "<0xBD>", "a"]), ["", "", ""], "of no character");
  assert.deepEqual(parts(["e", "\u0301"], [0, 0]), ["", ""], "not in bytes");
  assert.equal(nameOfToken(named(bytesOfText("é"))[0]), "<0xC3> (part of é)");
  assert.equal(nameOfToken(named([...bytesOfText("é"), ...bytesOfText("é")])[3]), "3 <0xA9> (part of é)");
  const { nodes } = groupsOf(named(bytesOfText("é"), [0, 0]), { merge: true });
  assert.deepEqual(nodes.map((node) => nameOfToken(node)), ["é"]);
});

test("a search finds characters that several tokens share, and their bytes", () => {
  const found = (query) => searched(named(bytesOfText("你好"), Array(6).fill(0)), query).map((some) => some.map(({ index }) => index));
  assert.deepEqual(found("好"), [[3]]);
  assert.deepEqual(found("你好"), [[0, 1, 2, 3]]);
  assert.deepEqual(found("<0xa5>"), [[4]]);
});

test("pinned heads are in view with the chosen one, each once", () => {
  const names = (state) => placesOf(state).map(({ layer, head }) => `${layer}.${head}`);
  assert.deepEqual(names({ layer: 2, head: 1, pins: null }), ["2.1"]);
  assert.deepEqual(names({ layer: 2, head: 1, pins: ["3.0", "2.1", "10.12"] }), ["2.1", "3.0", "10.12"]);
  assert.deepEqual([withPin(null, "1.0"), withPin(["1.0", "2.0"], "1.0")], [["1.0"], ["2.0"]]);
  assert.deepEqual(fromFragment("#pins=1.0-2.3").pins, ["1.0", "2.3"]);
  for (const text of ["pins=1", "pins=1.0-", "pins=a.b", "pins=-1.0"]) assert.equal(fromFragment(text).pins, null);
  const graphs = Array.from({ length: 12 }, (_, head) => ({ layer: 0, head, scores: {}, values: head ? { attention: [0, 1], score: [0, 1] } : { attention: [0, 1] } }));
  const traces = [{ stacks: [{ name: "s", layers: [0], heads: [...graphs.keys()], keys: { tokens: ["a"] }, queries: null, graphs }] }];
  const fit = (state) => settled({ ...DEFAULTS, layer: 0, head: 1, ...state }, traces);
  assert.deepEqual(fit({ pins: ["0.3", "0.99", "0.3"] }).pins, ["0.3"]);
  assert.equal(fit({ pins: ["0.99"] }).pins, null);
  assert.equal(fit({ pins: graphs.map(({ head }) => `0.${head}`) }).pins.length, 7);
  assert.equal(fit({ overlay: true }).overlay, false, "nothing lies over one head");
  assert.equal(fit({ weight: "score", pins: ["0.2"] }).weight, "score");
  assert.equal(fit({ weight: "score", pins: ["0.0"] }).weight, "attention", "a weight that all heads in view have");
});
