"""Engines hold no tensor of all pairs: seen by watching every tensor that is made."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gattn.attention import attention_graphs, graph_attention
from gattn.graph.token_graph import TokenGraph
from gattn.heads.store import apart
from gattn.keep import TopK

TOKENS, HEADS, DIM = 512, 4, 16
PAIRS = TOKENS * TOKENS * HEADS


class Largest(TorchDispatchMode):
    """Records the most numbers that a tensor had in memory of its own."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.layout == torch.strided:
                size = one.untyped_storage().nbytes() // one.element_size()
                self.numbers = max(self.numbers, size)
        return made


def distance(query, key, pairs):
    return -(query - key).abs().sum(-1)


def largest(engine, graph, weight=None):
    inputs = [torch.randn(HEADS, TOKENS, DIM, requires_grad=True) for _ in range(3)]
    with Largest() as seen:
        output = graph_attention(*inputs, graph, weight=weight, engine=engine)
        output.sum().backward()
    return seen.numbers


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch):
    """Bounds of a sixteenth, so that a small problem shows what a large one takes."""
    for name in ("shared.scoring", "edges", "tiles"):
        monkeypatch.setattr(f"gattn.engines.{name}.keep_freed_memory", lambda: None)
    monkeypatch.setattr("gattn.engines.shared.scoring.PIECE_NUMBERS", 1 << 16)
    monkeypatch.setattr("gattn.engines.tiles.BLOCK_BYTES", 1 << 20)


def test_a_lambda_on_all_pairs_takes_a_block_at_a_time():
    """Pairs times features would be 16 times all pairs; a block stays below a quarter of them."""
    assert largest("tiles", TokenGraph.complete(TOKENS), distance) <= PAIRS // 4


@pytest.mark.parametrize("weight", [None, distance])
def test_edges_take_one_number_a_head_and_edge(weight):
    graph = TokenGraph.strided(TOKENS, 8)
    tokens = TOKENS * HEADS * DIM
    assert largest("edges", graph, weight) <= max(2 * graph.num_edges * HEADS, 8 * tokens)


def test_a_narrow_window_never_sees_all_pairs():
    assert largest("tiles", TokenGraph.window(TOKENS, 16), distance) <= PAIRS // 4


def test_attention_graphs_keep_what_is_kept(monkeypatch):
    monkeypatch.setattr(apart, "LEAST_BYTES", 1 << 40)  # a chunk is larger than what it holds
    query = torch.randn(HEADS, TOKENS, DIM)
    for engine in ("tiles", "edges"):
        with Largest() as seen:
            graph = TokenGraph.window(TOKENS, 64)
            attention_graphs(query, query, graph, weight=distance, keep=TopK(4), engine=engine)
        assert seen.numbers <= PAIRS // 4


def test_the_reference_is_told_apart():
    """Message passing gathers the vectors at both ends of every edge."""
    assert largest("message_passing", TokenGraph.complete(TOKENS), distance) >= PAIRS * DIM
