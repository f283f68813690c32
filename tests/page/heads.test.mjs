import assert from "node:assert/strict";
import { test } from "node:test";
import * as viewer from "./viewer.mjs";
import { base64, causal, dense, floats, headOf, planes, tokens } from "./samples.mjs";

const decode = async (text, graph, shape) => viewer.decodeHead(await viewer.inflate(viewer.bytesOf(text)), graph, shape);

test("a causal block is decoded without stored indices", async () => {
  const block = base64(planes([65534, 32767, 0, 65534, 0, 0], 2), floats([1, 1, 1.5]));
  const graph = { pattern: "causal", values: { attention: [0, 1] }, sink: null };
  const head = await decode(block, graph, { queries: 3, keys: 3, offset: 0, levels: 65534 });
  assert.deepEqual([...head.start], [0, 1, 3, 6]);
  assert.deepEqual([...head.key], [0, 0, 1, 0, 1, 2]);
  assert.deepEqual([...head.values.attention], [1, 0.5, 0, 1, 0, 0]);
  assert.deepEqual([...head.mass], [1, 1, 1.5]);
});

test("a decoding step and cross-attention are decoded", async () => {
  const step = await decode(base64(planes([1, 2, 3, 4], 2), floats([1])), { pattern: "causal", values: { attention: [0, 4] }, sink: null }, { queries: 1, keys: 4, offset: 3, levels: 4 });
  assert.deepEqual([...step.key], [0, 1, 2, 3]);
  assert.deepEqual([...step.values.attention], [1, 2, 3, 4]);
  const cross = await decode(base64(planes([0, 1, 2, 3, 4, 5], 2), floats([1, 1])), { pattern: "complete", values: { attention: [0, 5] }, sink: null }, { queries: 2, keys: 3, offset: 0, levels: 5 });
  assert.deepEqual([...cross.key], [0, 1, 2, 0, 1, 2]);
});

test("explicit edges, missing scores and a sink are decoded", async () => {
  const block = base64(
    planes([2, 0, 3], 4), planes([0, 70000, 5, 1, 2], 4),
    planes([1, 2, 3, 4, 5], 2), planes([65535, 0, 10, 10, 10], 2),
    floats([1, 0, 0.5]), planes([10, 0, 5], 2),
  );
  const graph = { pattern: "explicit", edges: 5, values: { attention: [-5, 5], score: [-1, 1] }, sink: [0, 1] };
  const head = await decode(block, graph, { queries: 3, keys: 80000, offset: 0, levels: 10 });
  assert.deepEqual([...head.start], [0, 3, 4, 8]);
  assert.deepEqual([...head.key], [0, 70000, 80000, 80000, 5, 6, 8, 80000]);
  assert.deepEqual([...head.values.attention], [-4, -3, 1, 0, -2, -1, 0, 0.5]);
  assert.ok(Number.isNaN(head.values.score[0]) && Number.isNaN(head.values.score[2]));
  assert.deepEqual([...head.values.score.slice(4, 7)], [1, 1, 1]);
  assert.equal(head.sinkKey, 80000);
});

test("a difference has the edges of both heads", () => {
  const words = tokens(["a", "b", "c"]);
  const before = headOf([[1, null, null], [0.5, 0.5, null], [null, 1, null]], words);
  const after = headOf([[1, null, null], [null, 1, null], [0.25, 0.75, null]], words);
  const change = viewer.withTokens(viewer.difference(before, after), words, null, 0);
  assert.deepEqual(dense(change), [[0, null, null], [-0.5, 0.5, null], [0.25, -0.25, null]]);
  assert.deepEqual([...change.mass], [0, 1, 0.5]);
});

const changed = (before, after, keys) => viewer.withTokens(viewer.difference(before, after), keys, null, 0);

test("the change of an edge that one run did not keep is not known, and that of a score of a cut edge is none", () => {
  const words = tokens(["a", "b"]);
  const more = { score: (a) => 10 * a };
  const whole = headOf([[1, null], [0.25, 0.75]], words, { more });
  const cut = headOf([[1, null], [null, 1]], words, { more });
  const known = changed(whole, cut, words);
  assert.deepEqual(dense(known), [[0, null], [-0.25, 0.25]]);
  assert.deepEqual(dense(known, "score"), [[0, null], [NaN, 2.5]]);
  assert.equal(viewer.valueText(NaN, known), "no edge");
  const part = changed(whole, { ...cut, isPart: true }, words);
  assert.deepEqual(dense(part), [[0, null], [NaN, 0.25]]);
  assert.deepEqual([...part.mass], [0, 0.25]);
  assert.equal(viewer.valueText(NaN, part), "not kept");
  const { reads } = viewer.readingsOf(part, { row: 1, key: -1 }, "attention");
  assert.deepEqual(reads.map(({ key, value }) => [key, value]), [[1, 0.25], [0, NaN]]);
  const chosen = viewer.choose(part, { threshold: null, top: 0, weight: "attention", isDense: true });
  assert.equal(viewer.caption(part, chosen), "all 3 edges, 100 % of the known change; 1 edge kept in only one run");
  const lines = viewer.choose(part, { threshold: 0.1, top: 0, weight: "attention" });
  assert.equal(viewer.caption(part, lines), "change ≥ 0.1: 1 of 3 edges, 100 % of the known change; 1 edge kept in only one run");
  const dropped = changed({ ...cut, isPart: true }, whole, words);
  assert.deepEqual(dense(dropped), [[0, null], [NaN, -0.25]]);
});

test("a sink of one run alone is a sink of the change", () => {
  const words = tokens(["a", "b"]);
  const plain = headOf([[1, null], [0.5, 0.5]], words);
  const sunk = headOf([[0.5, null, 0.5], [0.25, 0.25, 0.5]], words);
  for (const [before, after, sign] of [[plain, sunk, 1], [sunk, plain, -1]]) {
    const change = changed({ ...before, isPart: true }, { ...after, isPart: true }, words);
    assert.equal(change.sinkKey, 2);
    assert.deepEqual(dense(change), [[-0.5 * sign, null, 0.5 * sign], [-0.25 * sign, -0.25 * sign, 0.5 * sign]]);
    assert.deepEqual([...change.mass], [0.5, 0.5], "what goes to the sink is no mass");
    assert.ok(change.keys[2].virtual);
  }
});

test("a weight is one that all runs have", () => {
  const trace = (values) => ({ stacks: [{ name: "decoder", layers: [0], keys: { tokens: ["a"] }, graphs: [{ layer: 0, head: 0, values, scores: {} }] }] });
  const [rich, plain] = [trace({ attention: [0, 1], score: [0, 1] }), trace({ attention: [0, 1] })];
  const wanted = { ...viewer.DEFAULTS, weight: "score" };
  assert.equal(viewer.settled(wanted, [rich]).weight, "score");
  for (const traces of [[rich, plain], [plain, rich]]) assert.equal(viewer.settled(wanted, traces).weight, "attention");
});

test("a word reads the mean of its tokens and is read by their sum", () => {
  const words = tokens(["un", "##do", "it"], { words: [0, 0, 1] });
  const head = headOf([[1, null, null], [0.5, 0.5, null], [0.25, 0.25, 0.5]], words, { more: { score: () => 1 } });
  const merged = viewer.regroup(head, viewer.groupsOf(head.keys, { merge: true }));
  assert.deepEqual(merged.keys.map(({ text }) => text), ["undo", "it"]);
  assert.deepEqual(dense(merged), [[1, null], [0.5, 0.5]]);
  assert.deepEqual(Object.keys(merged.values), ["attention"], "scores do not merge");
  assert.deepEqual([...merged.rowNode], [0, 1]);
  assert.equal(merged.keys[0].last, 1);
  assert.equal(viewer.nodeOf(merged.keys, 1), 0, "a token is found in its word");
  assert.equal(viewer.nodeOf(merged.keys, 2), 1);
});

test("repeated tokens and words never merge", () => {
  const head = causal(3, () => 0.5, { words: [0, 1, null] });
  head.keys.forEach((token) => (token.text = "same"));
  assert.equal(viewer.groupsOf(head.keys, { merge: true }).nodes.length, 3);
  const nulls = tokens(["a", "b"], { words: [null, null] });
  assert.equal(viewer.groupsOf(nulls, { merge: true }).nodes.length, 2, "tokens of no word stay apart");
});

test("hidden tokens are neither read nor read; what is left keeps all values", () => {
  const head = causal(4, (i, j) => (i + 1) / (j + 1) / 10);
  head.values.score = head.values.attention.map((a) => -a);
  const shown = viewer.regroup(head, viewer.groupsOf(head.keys, { hidden: new Set([0]) }));
  assert.deepEqual(shown.keys.map(({ index }) => index), [1, 2, 3]);
  assert.deepEqual(shown.queries.map(({ index }) => index), [1, 2, 3]);
  assert.deepEqual(dense(shown), [[0.1, null, null], [0.15, 0.1, null], [0.2, 0.1333, 0.1]]);
  assert.equal(dense(shown, "score")[2][0], -0.2);
});

test("the queries of a decoding step keep their places when tokens are hidden", () => {
  const words = tokens(["a", "b", "c", "d"]);
  const head = headOf([[0.1, 0.2, 0.7, null], [0.4, 0.3, 0.2, 0.1]], words, { offset: 2 });
  const shown = viewer.regroup(head, viewer.groupsOf(head.keys, { hidden: new Set([1]) }));
  assert.deepEqual([...shown.rowNode], [1, 2]);
  assert.deepEqual(shown.queries.map(({ text }) => text), ["c", "d"]);
});

test("a window shows a range of keys and one of queries", () => {
  const head = causal(6, (i, j) => (i * 10 + j) / 100);
  const part = viewer.windowed(head, [1, 3], [3, 6]);
  assert.deepEqual(part.keys.map(({ index }) => index), [1, 2]);
  assert.deepEqual(part.queries.map(({ index }) => index), [3, 4, 5]);
  assert.deepEqual(dense(part), [[0.31, 0.32], [0.41, 0.42], [0.51, 0.52]]);
  assert.deepEqual([...part.rowNode], [-1, -1, -1]);
  assert.equal(viewer.windowed(head, null, null), head);
});

test("sinks are what takes more than 0.3 of the attention on average, and the virtual one", () => {
  const head = causal(5, (i, j) => (j === 0 ? 0.8 : 0.2 / i));
  assert.deepEqual([...viewer.sinksOf(head)], [0]);
  const even = causal(8, (i) => 1 / (i + 1));
  assert.deepEqual([...viewer.sinksOf(even)], [0], "its mean is 0.34");
  const virtual = headOf([[1, 0.5], [null, 0.5]], tokens(["a"]), { queries: tokens(["x", "y"]) });
  assert.deepEqual([...viewer.sinksOf(virtual)], [1]);
});

test("a token's edges are listed by size, and ties by their order", () => {
  const head = causal(4, (i, j) => [0.4, 0.1, 0.4, 0.1][j]);
  const { reads, readBy } = viewer.readingsOf(head, { row: 3, key: 2 }, "attention");
  assert.deepEqual(reads.map(({ key }) => key), [0, 2, 1, 3]);
  assert.deepEqual(reads.map(({ token, value }) => [token.text, Number(value.toFixed(2))])[2], ["t1", 0.1]);
  assert.deepEqual(readBy.map(({ row }) => row), [2, 3]);
});

test("a score of 0 is a reading, and the strongest of negative ones; none is the weakest", () => {
  const head = causal(4, (i, j) => [0, 0.1, 0.2, 0.7][j]);
  head.values.score = head.values.attention.map((_, e) => [NaN, -2, -1, 0][head.key[e]]);
  const { reads } = viewer.readingsOf(head, { row: 3, key: -1 }, "score");
  assert.deepEqual(reads.map(({ key, value }) => [key, value]), [[3, 0], [2, -1], [1, -2], [0, NaN]]);
  assert.deepEqual(reads.map(({ isClear }) => isClear), [true, true, false, false]);
  assert.deepEqual(viewer.readingsOf(head, { row: 3, key: -1 }, "attention").reads.map(({ key }) => key), [3, 2, 1]);
});

test("a sink has no score", () => {
  const head = headOf([[0.5, 0.5]], tokens(["a"]), { queries: tokens(["x"]), more: { score: (_, e) => (e ? NaN : 1) } });
  assert.deepEqual(viewer.readingsOf(head, { row: 0, key: -1 }, "score").reads.map(({ key }) => key), [0]);
});

test("a threshold is on the size of the attention, and top-k on the weight; ties go to the smaller key", () => {
  const head = causal(4, (i, j) => [0.4, -0.3, 0.4, 0.05][j], {});
  head.values.score = head.values.attention.map((a, e) => (head.key[e] === 1 ? 1 : -9));
  const pairs = ({ edges }) => [...edges].map((e) => `${viewer.indexOf(head).row[e]}<-${head.key[e]}`);
  assert.deepEqual(pairs(viewer.choose(head, { threshold: 0.3, top: 0, weight: "attention" })).length, 9);
  assert.deepEqual(pairs(viewer.choose(head, { threshold: null, top: 1, weight: "attention" })), ["0<-0", "1<-0", "2<-0", "3<-0"]);
  assert.deepEqual(pairs(viewer.choose(head, { threshold: 0.2, top: 1, weight: "score" })), ["0<-0", "1<-1", "2<-1", "3<-1"], "a score is strong where it is large, not far from 0");
  assert.match(viewer.choose(head, { threshold: 0.3, top: 2, weight: "score" }).rule, /attention ≥ 0.3, the 2 strongest per query by score/);
});

test("by itself a picture shows no more than stays readable, and an edge of each query", () => {
  const head = causal(60, (i, j) => (j === 0 ? 0.9 : 0.1 / i));
  const { edges, rule } = viewer.choose(head, { threshold: null, top: 0, weight: "attention" });
  assert.ok(edges.length <= 160 && edges.length >= 60);
  assert.equal(new Set([...edges].map((e) => viewer.indexOf(head).row[e])).size, 60);
  assert.match(rule, /attention ≥/);
});

const keysOf = (head, edges) => new Set(Array.from(edges, (e) => head.key[e]));

/** How often the most common distance between neighbouring chosen places occurs: 1 if they are every k-th. */
function regularity(places) {
  const gaps = new Map();
  places.slice(1).forEach((place, n) => gaps.set(place - places[n], (gaps.get(place - places[n]) ?? 0) + 1));
  return Math.max(...gaps.values()) / (places.length - 1);
}

test("uniform attention stays visible: as many of the strongest edges of each query, over all keys, in no pattern", () => {
  const n = 120;
  const head = headOf(Array.from({ length: n }, () => Array(n).fill(1 / n)), tokens(Array(n).fill("x")));
  const { edges, rule } = viewer.choose(head, { threshold: null, top: 0, weight: "attention" });
  const rows = Array.from(edges, (e) => viewer.indexOf(head).row[e]);
  assert.deepEqual(rows, Array.from({ length: n }, (_, i) => [i, i, i]).flat(), "280 edges stay readable: three of each");
  assert.equal(rule, "3 of the strongest edges of each query");
  assert.ok(keysOf(head, edges).size > 100);
  assert.ok(regularity([...edges]) < 0.1);
  assert.deepEqual(viewer.choose(head, { threshold: null, top: 0, weight: "attention" }).edges, edges, "the same each time");
});

test("of a query with nearly uniform attention the strongest edges are shown, of others those above the threshold", () => {
  const n = 100;
  const value = (i, j) => (i < 50 ? (j === 7 ? 0.9 : 0.1 / 99) : (0.5 + ((37 * j) % 100) / 100) / 100);
  const head = headOf(Array.from({ length: n }, (_, i) => Array.from({ length: n }, (__, j) => value(i, j))), tokens(Array(n).fill("x")));
  const { edges, rule } = viewer.choose(head, { threshold: null, top: 0, weight: "attention" });
  assert.equal(rule, "attention ≥ 0.02; where a query reads evenly, 5 of its strongest edges");
  for (const e of edges) {
    const [i, j] = [Math.floor(e / n), e % n];
    if (i < 50) assert.equal(j, 7);
    else assert.ok((37 * j) % 100 >= 94, "the five largest; sizes within 1 % count as equal");
  }
  assert.equal(edges.length, 50 + 5 * 50);
});

test("of many lines the strongest are drawn, and this is said; dense views show all", () => {
  const head = causal(200, (i, j) => 0.2 + ((i * 7919 + j * 104729) % 20101) / 30000);
  const asked = { threshold: 0.1, top: 0, weight: "attention" };
  const some = viewer.choose(head, asked);
  const sorted = [...head.values.attention].sort((a, b) => b - a);
  assert.equal(some.edges.length, 2000);
  assert.deepEqual([...some.edges].map((e) => head.values.attention[e]).sort((a, b) => b - a), sorted.slice(0, 2000));
  assert.match(viewer.caption(head, some), /^attention ≥ 0.1: the 2,000 strongest of 20,100 edges(, ties by chance)?, [\d.]+ % of the attention$/);
  const fewer = viewer.choose(head, { ...asked, threshold: 0.5 });
  const passing = sorted.filter((a) => a >= 0.5).length;
  const said = viewer.caption(head, fewer);
  assert.ok(said.startsWith(`attention ≥ 0.5: the 2,000 strongest of ${passing.toLocaleString("en")} edges`) && said.includes(" (20,100 in all)"), said);
  assert.equal(viewer.choose(head, { ...asked, isDense: true }).edges.length, 20100);
  const others = [...head.key.keys()].filter((e) => !some.edges.includes(e)).slice(0, 3);
  const marked = viewer.withMarked(some, new Set([some.edges[0], ...others]));
  assert.match(viewer.caption(head, marked), /^attention ≥ 0.1: the 2,000 strongest of 20,100 edges(, ties by chance)? or in the circuit: 2,003 of 20,100 edges, /);
  assert.equal(viewer.withMarked(some, new Set([some.edges[0]])), some);
});

test("of equally strong lines chance chooses, in no pattern, and this is said", () => {
  const head = headOf(Array.from({ length: 100 }, () => Array.from({ length: 100 }, (_, j) => (j === 3 ? 0.5 : 0.5 / 99))), tokens(Array(100).fill("x")));
  const chosen = viewer.choose(head, { threshold: 0, top: 0, weight: "attention" });
  const { edges } = chosen;
  assert.equal(edges.length, 2000);
  assert.equal(edges.filter((e) => head.key[e] === 3).length, 100);
  assert.equal(keysOf(head, edges).size, 100);
  assert.ok(regularity([...edges]) < 0.3);
  assert.match(viewer.caption(head, chosen), /^the 2,000 strongest of 10,000 edges, ties by chance, /);
});

test("layers of uniform attention are not empty, but chance spreads them over layers and keys", async () => {
  const head = headOf(Array.from({ length: 64 }, () => Array(64).fill(1 / 64)), tokens(Array(64).fill("x")));
  const { key, mean } = await viewer.meanOf([head, head]);
  const { edges, all, isTied } = viewer.strongestOf([mean, mean, mean, mean], 192, () => true);
  assert.deepEqual([all, edges.length, isTied], [16384, 192, true]);
  assert.ok(new Set(edges.map(({ e }) => key[e])).size > 50);
  for (let l = 0; l < 4; l++) assert.ok(edges.filter((edge) => edge.l === l).length > 30);
});

test("as many edges as are asked for are found where the next ones are weaker", () => {
  const { edges } = viewer.strongestOf([Float32Array.from([0.9, 0.9, 0.1, 0.1])], 2, () => true);
  assert.deepEqual(edges.map(({ e }) => e), [0, 1]);
});

test("what comes from a sink is told apart from edges and mass", () => {
  const head = headOf([[0.5, null, 0.5], [0.25, 0.25, 0.5]], tokens(["a", "b"]));
  const said = viewer.caption(head, viewer.choose(head, { threshold: 0.3, top: 0, weight: "attention" }));
  assert.equal(said, "attention ≥ 0.3: 1 of 3 edges, 50 % of the attention; 2 edges from the sink");
});

test("a caption counts edges and mass, what was dropped before included", () => {
  const head = causal(2, () => 0.5);
  head.mass = Float32Array.from([1, 1]);
  const said = viewer.caption(head, { edges: Uint32Array.from([1]), rule: "attention ≥ 0.1" });
  assert.equal(said, "attention ≥ 0.1: 1 of 3 edges, 25 % of the attention");
  assert.equal(viewer.caption(head, viewer.choose(head, { threshold: null, top: 0, weight: "attention", isDense: true })), "all 3 edges, 75 % of the attention");
});

test("a layer is the mean of its heads; a token missing from a head reads nothing there", async () => {
  const words = tokens(["a", "b"]);
  const mean = await viewer.meanOf([headOf([[1, null], [0.5, 0.5]], words), headOf([[0.2, 0.8]], words, { offset: 1 })]);
  const edges = [...mean.mean].map((m, e) => [mean.query[e], mean.key[e], Number(m.toFixed(4))]);
  assert.deepEqual(edges, [[0, 0, 0.5], [1, 0, 0.35], [1, 1, 0.65]]);
  assert.deepEqual([...mean.mass].map((m) => Number(m.toFixed(4))), [0.5, 1]);
});

test("rollout divides by the whole mass: by that of dropped edges, of hidden tokens, and not by a sink's", async () => {
  const words = tokens(["a", "b", "c"]);
  const whole = [[0.6, null, null], [0.5, 0.4, null], [0.2, 0.3, 0.5]];
  const few = headOf([[0.6, null, null, 0.4], [0.5, null, null, 0.1], [null, null, 0.5, 0]], words);
  few.mass = Float32Array.from(whole, (row) => row.reduce((sum, a) => sum + a, 0));
  const hidden = viewer.regroup(headOf(whole, words), viewer.groupsOf(words, { hidden: new Set([0]) }));
  for (const [head, kept, masses] of [[few, [[0.6, 0, 0], [0.5, 0, 0], [0, 0, 0.5]], [0.6, 0.9, 1]], [hidden, [[0.4, 0], [0.3, 0.5]], [0.9, 1]]]) {
    const layer = await viewer.meanOf([head, head]);
    masses.forEach((mass, i) => assert.ok(Math.abs(layer.mass[i] - mass) < 1e-6));
    const mixed = kept.map((row, i) => row.map((a, j) => (a + (i === j)) / (1 + masses[i])));
    const last = kept.length - 1;
    const expected = mixed[last].map((_, j) => mixed[last].reduce((sum, a, k) => sum + a * mixed[k][j], 0));
    const { levels } = viewer.rollout([layer, layer], 2, last);
    levels[0].forEach((share, j) => assert.ok(Math.abs(share - expected[j]) < 1e-6, `${share} ${expected[j]}`));
  }
});

test("rollout is the product of layers of half attention and half stream", async () => {
  const words = tokens(["a", "b", "c"]);
  const rows = [[1, null, null], [0.6, 0.4, null], [0.2, 0.3, 0.5]];
  const layer = await viewer.meanOf([headOf(rows, words)]);
  const mixed = rows.map((row, i) => row.map((a, j) => 0.5 * (a ?? 0) + (i === j ? 0.5 : 0)));
  const product = mixed.map((row) => row.map((_, j) => row.reduce((sum, a, k) => sum + a * mixed[k][j], 0)));
  const { levels, flows } = viewer.rollout([layer, layer], 2, 2);
  levels[0].forEach((share, j) => assert.ok(Math.abs(share - product[2][j]) < 1e-6));
  assert.ok(Math.abs(levels[0].reduce((a, b) => a + b) - 1) < 1e-6, "what a token has read is 1 in all");
  assert.ok(Math.abs(flows[1].reduce((a, b) => a + b) - 0.5) < 1e-6);
  const up = viewer.rollout([layer, layer], 0, 0).levels[2];
  up.forEach((share, i) => assert.ok(Math.abs(share - product[i][0]) < 1e-6));
});

test("of equally coarse sizes the strongest are taken, too", () => {
  const { edges } = viewer.strongestOf([Float32Array.from({ length: 30 }, (_, i) => 1 + i)], 20, () => true);
  assert.deepEqual(edges.map(({ e }) => e), Array.from({ length: 20 }, (_, i) => i + 10));
});

test("the strongest edges of layers are the strongest, the weakest of them first", () => {
  const values = [Float32Array.from({ length: 500 }, (_, i) => ((i * 37) % 500) / 500), Float32Array.from([0.9999, -0.99995])];
  const { edges, all, total } = viewer.strongestOf(values, 20, () => true);
  assert.ok(edges.length <= 20 && edges.length >= 10);
  assert.deepEqual(edges.slice(-2).map(({ l, e }) => [l, e]), [[1, 0], [1, 1]]);
  assert.equal(all, 501);
  assert.ok(Math.abs(total - (values[0].reduce((a, b) => a + b) + 1.99985)) < 1e-3);
  assert.deepEqual(edges.map(({ size }) => size), edges.map(({ size }) => size).sort((a, b) => a - b));
});

test("edges of layers are chosen by threshold and by the strongest of each query", () => {
  const layer = { key: Uint32Array.from([0, 0, 1, 0, 1, 2]), query: Uint32Array.from([0, 1, 1, 2, 2, 2]), mean: Float32Array.from([1, 0.4, 0.6, -0.5, 0, 0.25]), mass: new Float64Array(3) };
  const found = (rule) => {
    const ruled = viewer.ruleOf([layer], rule, "mean attention");
    return [...layer.mean.keys()].filter((e) => ruled.passes(0, e));
  };
  assert.equal(viewer.ruleOf([layer], { threshold: null, top: 0 }, ""), null);
  assert.deepEqual(found({ threshold: 0.5, top: 0 }), [0, 2, 3]);
  assert.deepEqual(found({ threshold: null, top: 1 }), [0, 2, 3]);
  assert.deepEqual(found({ threshold: 0.45, top: 2 }), [0, 2, 3]);
  assert.deepEqual(found({ threshold: 0, top: 0 }), [0, 1, 2, 3, 5], "an edge of nothing is none");
  assert.equal(viewer.ruleOf([layer], { threshold: 0.5, top: 2 }, "mean attention").rule, "mean attention ≥ 0.5, the 2 strongest per query and layer");
  const { all, passing, edges } = viewer.strongestOf([layer.mean], 2, () => true, (l, e) => layer.mean[e] > 0.3);
  assert.deepEqual([all, passing, edges.map(({ e }) => e)], [5, 3, [2, 0]]);
});

test("a layer of which no head is chosen passes tokens on", () => {
  const { levels } = viewer.rollout([viewer.passedOn(3, false), viewer.passedOn(3, false)], 2, 1);
  assert.deepEqual(levels.map((level) => [...level]), Array(3).fill([0, 1, 0]));
});
