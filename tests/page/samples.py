"""Traces to look at."""

import numpy as np

from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

HOSTILE = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=2</script>",
    "<!-- <script>",
    "]]>",
    "\"'`",
    "javascript:window.pwned=3",
    "a\0b",
    "\u202egnp.exe\u202c",
    "\u2066isolated\u2069",
    "\u2028line\u2029",
    "\ud800",
    "\n",
    "",
    "   ",
    "$x^2$",
    "漢字",
    "🧪",
    "שלום",
    "e\u0301\u0301",
    "x" * 300,
    "<img src=x onerror=window.pwned=4>",
    "&lt;b&gt;&amp;",
    "\\u003cb",
    "\x1b[31m",
    "</style>",
    "<iframe srcdoc='<script>top.pwned=5</script>'>",
    "#layer=1&head=2",
    "constructor",
    "__proto__",
]


def trace_of(tokens, *, layers=2, heads=3, causal=True, kept=None, name="decoder", **attributes):
    """Draw attention with peaks and a sink on the first token, the same each time."""
    size, rng = len(tokens), np.random.default_rng(0)
    graph = TokenGraph.causal(size) if causal else TokenGraph.complete(size)
    found = {}
    for place in np.ndindex(layers, heads):
        scores = rng.normal(size=(size, 8)) @ rng.normal(size=(8, size)) / 2
        scores[:, 0] += 2
        share = np.exp(scores) * graph.mask().numpy()
        share = (share / share.sum(1, keepdims=True)).astype(np.float32)
        where = {"layer": place[0], "head": place[1]}
        head = AttentionGraph.from_dense(share, graph, tokens=tokens, **where, **attributes)
        found[place] = head if kept is None else head.keep(kept)
    return AttentionTrace({name: Stack(name, found)}, attributes.get("model", "sample"))


def words(count):
    some = [" the", " river", " tall", " green", " lamp", " dog", " cat", " walks"]
    return np.random.default_rng(1).choice(some, count).tolist()


def signed():
    rng, found = np.random.default_rng(2), {}
    for place in np.ndindex(2, 2):
        dense = rng.normal(size=(6, 6))
        where = {"layer": place[0], "head": place[1]}
        found[place] = AttentionGraph.from_dense(dense, tokens=words(6), **where)
    return AttentionTrace({"encoder": Stack("encoder", found)}, "signed")
