"""Tiles of a graph, as kernels read them, are its mask."""

import pytest
import torch
from problems import GRAPHS, WIDE

from gattn.engines.kernels import mask_tiles
from gattn.engines.kernels.mask_tiles import ALL, NONE, SIZE, WORD
from gattn.graph.rules.simple import Causal
from gattn.graph.token_graph import TokenGraph

ALIKE = {
    **{f"small {name}": graph for name, graph in GRAPHS.items()},
    **WIDE,
    "causal": TokenGraph.causal(3 * SIZE + 1),
    "complete": TokenGraph.complete(2 * SIZE),
    "complete and ragged": TokenGraph.complete(2 * SIZE + 1),
    "a late chunk": TokenGraph.causal(SIZE, num_keys=3 * SIZE, query_offset=2 * SIZE),
    "far apart": TokenGraph.dilated(400, 150, 100),
    "random": TokenGraph.from_mask(torch.arange(300**2).view(300, 300) % 7 == 3),
    "whole tiles cut": TokenGraph.complete(300)
    - TokenGraph.from_edges([(j, i) for i in range(SIZE) for j in range(SIZE, 2 * SIZE)], 300),
}


def mask_of(graph):
    tiles = mask_tiles.mask_tiles(graph, torch.device("cpu"))
    rows, columns = (-(-tokens // SIZE) * SIZE for tokens in (graph.num_queries, graph.num_keys))
    dense = torch.zeros(rows, columns, dtype=torch.bool)
    for row in range(tiles.rows):
        some = range(int(tiles.pointer[row]), int(tiles.pointer[row + 1]))
        found = [int(tiles.column[n]) for n in some]
        assert found == sorted(set(found))
        for n, column in zip(some, found, strict=True):
            words = tiles.words[int(tiles.bits[n])]
            bits = (words[..., None] >> torch.arange(WORD)) & 1
            here = slice(row * SIZE, (row + 1) * SIZE), slice(column * SIZE, (column + 1) * SIZE)
            dense[here] = bits.flatten(1).bool()
    return dense


@pytest.mark.parametrize("name", ALIKE)
def test_they_are_the_mask(name):
    graph = ALIKE[name]
    if mask_tiles.why_not(graph):
        assert not graph.num_queries * graph.num_keys
        return
    dense = mask_of(graph)
    queries, keys = graph.num_queries, graph.num_keys
    assert torch.equal(dense[:queries, :keys], graph.mask())
    assert not dense[queries:].any()
    assert not dense[:, keys:].any()


def test_only_tiles_with_edges_are_listed_and_only_mixed_ones_have_bits():
    tiles = mask_tiles.mask_tiles(ALIKE["causal"], torch.device("cpu"))
    assert tiles.pointer.tolist() == [0, 1, 3, 6, 10]
    assert NONE not in tiles.bits.tolist()
    assert tiles.bits.tolist().count(ALL) == 3  # the last row of tiles is ragged
    far = mask_tiles.mask_tiles(ALIKE["random"] & TokenGraph.window(300, 5), torch.device("cpu"))
    assert len(far.column) <= 5
    cut = mask_tiles.mask_tiles(ALIKE["whole tiles cut"], torch.device("cpu"))
    assert (cut.column[0], cut.column[1]) == (0, 2)


def test_whole_tiles_of_intervals_are_known_without_looking_at_pairs(monkeypatch):
    looked = []

    def allowed(self, query, key):
        looked.append(query.numel() // SIZE)
        return key <= query

    monkeypatch.setattr(Causal, "allowed", allowed)
    mask_tiles.mask_tiles(TokenGraph.causal(8 * SIZE), torch.device("cpu"))
    assert sum(looked) == 8  # those on the diagonal


def test_they_are_found_once():
    graph = TokenGraph.causal(500)
    found = [mask_tiles.mask_tiles(graph, torch.device("cpu")) for _ in range(2)]
    assert found[0] is found[1]


def test_edges_everywhere_take_too_much_memory(monkeypatch):
    monkeypatch.setattr(mask_tiles, "MOST_BYTES", 9 * SIZE**2 // 8 - 1)
    random = TokenGraph.from_mask(ALIKE["random"].mask())
    assert "MiB" in mask_tiles.why_not(random)
    assert mask_tiles.why_not(TokenGraph.causal(300)) is None
