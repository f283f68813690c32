"""Pages of all heads as one HTML file, compared with BertViz's model view.

The peer is BertViz (`pip install bertviz`); without it, these rows are left out.
Its HTML holds every number as decimal text, and loads its libraries from a CDN when it is opened.
"""

import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.row import Row, Side
from gattn import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

LAYERS = HEADS = 12
PEER_BYTES = 300
"""What BertViz needs per number: a Python float, its text, and copies of both."""


def rows(sizes: list[int]) -> list[Row]:
    """List the rows: causal heads of a model of GPT-2's shape."""
    return [
        Row(
            f"page/{size}",
            f"to_html, one file with all numbers of {LAYERS} x {HEADS} causal heads",
            "BertViz's model_view, whose page loads its libraries from a CDN",
            size,
            sides,
            peer_bytes=PEER_BYTES * LAYERS * HEADS * size**2,
            check=checked,
        )
        for size in sizes
        if find_spec("bertviz")
    ]


def sides(side: str, size: int, device: str) -> Side:
    """Write both pages of the same attention."""
    tokens = [f"word{position % 97}" for position in range(size)]
    layers = attention(size)
    if side == "peer":
        from bertviz import model_view

        batches = [layer[None] for layer in layers]
        return Side(lambda: model_view(batches, tokens, html_action="return").data)
    graph = TokenGraph.causal(size)
    heads = {
        (layer, head): AttentionGraph.from_dense(
            matrix, graph, tokens=tokens, layer=layer, head=head
        )
        for layer, matrices in enumerate(layers)
        for head, matrix in enumerate(matrices)
    }
    trace = AttentionTrace({"decoder": Stack("decoder", heads)})
    return Side(lambda: trace.to_html())


def attention(size: int) -> list[torch.Tensor]:
    """Draw attention like a model's: peaked, partly on the first token, partly nearby."""
    generator = torch.Generator().manual_seed(0)
    distance = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    layers = []
    for _ in range(LAYERS):
        query, key = (torch.randn(HEADS, size, 16, generator=generator) for _ in range(2))
        sharpness, sink, near = torch.rand(3, HEADS, 1, 1, generator=generator)
        scores = (0.3 + 0.5 * sharpness) * query @ key.mT - 0.05 * near * distance
        scores[..., :1] += 6 * sink
        scores.masked_fill_(torch.ones(size, size).triu(1).bool(), -torch.inf)
        layers.append(scores.softmax(-1))
    return layers


def checked(peer: Side, theirs: str, gattn: Side, ours: str) -> dict[str, float]:
    """Measure the size of both pages, and open gattn's."""
    found = {"MB for gattn's page": len(ours) / 1e6, "MB for BertViz's": len(theirs) / 1e6}
    if chromium := shutil.which("chromium"):
        found["s until gattn's page is painted"] = seconds_to_open(ours, chromium)
    return found


def seconds_to_open(text: str, chromium: str) -> float:
    """Open a page from a file in Chromium, until its heads are painted."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page: Any = browser.new_page()
        start = time.perf_counter()
        page.goto(path.as_uri())
        page.locator("#grid-note:not(:empty)").wait_for()
        page.evaluate("new Promise(painted => requestAnimationFrame(painted))")
        seconds = time.perf_counter() - start
        browser.close()
    return seconds
