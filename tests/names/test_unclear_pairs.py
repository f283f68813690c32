"""A pair of numbers may be a patch or two tokens; where tokens are patches, it is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.analysis import flow, head_distances, value_zeroing, without_tokens
from gattn.errors import SelectionError

WORDS = list("abcdefghi")


@pytest.fixture(scope="module")
def trace():
    matrices = np.random.default_rng(0).random((2, 2, 9, 9))
    return gattn.AttentionTrace.from_arrays(
        matrices / matrices.sum(-1, keepdims=True), tokens=WORDS
    )


ASKED = {
    "flow queries": (lambda trace, pair: flow(trace, queries=pair), "query"),
    "flow keys": (lambda trace, pair: flow(trace, keys=pair), "key"),
    "distances": (lambda trace, pair: head_distances(trace, queries=pair), "query"),
    "without": (without_tokens, "which"),
    "without, of a stack": (lambda trace, pair: without_tokens(trace.only_stack, pair), "which"),
    "without, of a head": (lambda trace, pair: without_tokens(trace[0, 0], pair), "which"),
    "subgraph": (lambda trace, pair: trace[0, 0].subgraph(pair), "nodes"),
    "hide": (lambda trace, pair: trace[0, 0].draw(hide=pair), "hide"),
}


@pytest.mark.parametrize(("asked", "name"), ASKED.values(), ids=ASKED)
def test_a_pair_may_be_a_patch_only_where_tokens_lie_on_a_grid(trace, asked, name):
    asked(trace, (1, 2))
    patches = trace.on_grid(3, 3)
    with pytest.raises(SelectionError, match=rf"{name}=\(1, 2\) may mean a patch or two tokens"):
        asked(patches, (1, 2))
    asked(patches, [1, 2])
    asked(patches, (1, 2, 3))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


def test_so_it_is_in_what_runs_a_model():
    model, x = Attending().eval(), torch.randn(1, 9, 8)

    def zeroed(pair, **where):
        return value_zeroing(lambda: model(x), model, zeroed=pair, progress=False, **where)

    assert zeroed((1, 2)).shape[-1] == 2
    assert zeroed([1, 2], grid=(3, 3)).shape[-1] == 2
    with pytest.raises(SelectionError, match=r"zeroed=\(1, 2\) may mean a patch or two tokens"):
        zeroed((1, 2), grid=(3, 3))

    def effect(position, **where):
        cut, run = gattn.Cut(layer=0, head=1), lambda: model(x)[0]
        return gattn.effect(run, [cut], model, position=position, progress=False, **where)

    assert len(effect((1, 2))) == len(effect([1, 2], grid=(3, 3))) == 1
    with pytest.raises(SelectionError, match=r"position=\(1, 2\) may mean a patch or two tokens"):
        effect((1, 2), grid=(3, 3))
