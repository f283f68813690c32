"""Every warning points at the user's line, however deep in gattn, or a library, it arises."""

import ast
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn import AttentionGraph, AttentionTrace

SCORES = np.array([[3.0, -1.0], [0.5, 2.0]])


class Codebook(nn.Module):
    """Attends to tokens, and to parameters, of which a warning tells."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
        self.codes = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        y = self.layer(x)
        return (y @ self.codes.T).softmax(-1) @ self.codes


def made():
    return Codebook().eval(), torch.randn(1, 5, 8)


def capture_of_function(mark):
    model, x = made()
    gattn.capture(lambda: model(x), model)
    mark()  # noqa: E702


def context(mark):
    model, x = made()
    with gattn.capturing(model):
        model(x)
        mark()  # noqa: E701, E702


def edited(mark):
    model, x = made()
    with gattn.edited(model, gattn.Cut(layer=0)):
        model(x)
        mark()  # noqa: E701, E702


def effect(mark):
    model, x = made()
    gattn.effect(lambda: model(x)[0], [gattn.Cut(layer=0)], model, position=0)
    mark()  # noqa: E702


def unknown_ids(mark):
    model, tokenizer = gattn.load_model()
    model.resize_token_embeddings(len(tokenizer) + 9)
    gattn.capture([1, 2, len(tokenizer) + 3], model, tokenizer)
    mark()  # noqa: E702


def unknown_ids_in_a_context(mark):
    model, tokenizer = gattn.load_model()
    model.resize_token_embeddings(len(tokenizer) + 9)
    ids = torch.tensor([[1, len(tokenizer) + 3]])
    with gattn.edited(model, gattn.Cut(layer=0, key="!"), tokenizer=tokenizer):
        model(ids)
        mark()  # noqa: E701, E702


def threshold(mark):
    gattn.capture("The dog", keep=gattn.Threshold(5))
    mark()  # noqa: E702


def threshold_of_trace(mark):
    gattn.AttentionTrace.from_arrays(np.eye(2)[None, None], keep=gattn.Threshold(5))
    mark()  # noqa: E702


def arrays(mark):
    AttentionTrace.from_arrays(SCORES[None, None])
    mark()  # noqa: E702


def edges(mark):
    AttentionGraph.from_edges([[0, 1], [1, 0]], [-1.0, 1.0], num_tokens=2)
    mark()  # noqa: E702


def transposed(mark):
    AttentionGraph.from_dense(np.array([[0.5, 0.1, 0.9], [0.2, 0.6, 0.05], [0.3, 0.3, 0.05]]))
    mark()  # noqa: E501, E702


def glyph(mark):
    graph = AttentionGraph.from_dense(np.eye(2), tokens=["a", "\U00012000"])
    graph.draw().figure.canvas.draw()
    mark()  # noqa: E702
    plt.close("all")


CALLS = [
    capture_of_function, context, edited, effect, unknown_ids, unknown_ids_in_a_context, threshold,
    threshold_of_trace, arrays, edges, transposed, glyph,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=[one.__name__ for one in CALLS])
def test_a_warning_points_at_the_line_that_calls(call):
    lines = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(lambda: lines.append(sys._getframe(1).f_lineno))
    own = [one for one in caught if one.category is UserWarning]
    assert own, "no warning"
    assert {(one.filename, one.lineno) for one in own} == {(__file__, lines[0])}


def test_all_warnings_are_given_in_one_place():
    files = Path(gattn.__file__).parent.rglob("*.py")
    calls = {
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "warnings.warn"
    }
    assert calls == {"checks.py"}
