"""Every warning points at the user's line, however deep in gattn, or a library, it arises."""

import ast
import importlib.util
import inspect
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


def capture_of_function():
    model, x = made()
    gattn.capture(lambda: model(x), model)


def context():
    model, x = made()
    with gattn.capturing(model):
        model(x)


def edited():
    model, x = made()
    with gattn.edited(model, gattn.Cut(layer=0)):
        model(x)


def effect():
    model, x = made()
    gattn.effect(lambda: model(x)[0], [gattn.Cut(layer=0)], model, position=0)


def unknown_ids():
    model, tokenizer = gattn.load_model()
    model.resize_token_embeddings(len(tokenizer) + 9)
    gattn.capture([1, 2, len(tokenizer) + 3], model, tokenizer)


def unknown_ids_in_a_context():
    model, tokenizer = gattn.load_model()
    model.resize_token_embeddings(len(tokenizer) + 9)
    ids = torch.tensor([[1, len(tokenizer) + 3]])
    with gattn.edited(model, gattn.Cut(layer=0, key="!"), tokenizer=tokenizer):
        model(ids)


def threshold():
    gattn.capture("The dog", keep=gattn.Threshold(5))


def threshold_of_trace():
    gattn.AttentionTrace.from_arrays(np.eye(2)[None, None], keep=gattn.Threshold(5))


def arrays():
    AttentionTrace.from_arrays(SCORES[None, None])


def edges():
    AttentionGraph.from_edges([[0, 1], [1, 0]], [-1.0, 1.0], num_tokens=2)


def transposed():
    AttentionGraph.from_dense(np.array([[0.5, 0.1, 0.9], [0.2, 0.6, 0.05], [0.3, 0.3, 0.05]]))


def glyph():
    graph = AttentionGraph.from_dense(np.eye(2), tokens=["a", "\U00012000"])
    graph.draw().figure.canvas.draw()
    plt.close("all")


CALLS = [
    capture_of_function, context, edited, effect, unknown_ids, unknown_ids_in_a_context, threshold,
    threshold_of_trace, arrays, edges, transposed, glyph,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=[one.__name__ for one in CALLS])
def test_a_warning_points_at_the_lines_that_call(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    own = [one for one in caught if one.category is UserWarning]
    assert own, "no warning"
    lines, first = inspect.getsourcelines(call)
    for one in own:
        assert one.filename == __file__
        assert first <= one.lineno < first + len(lines)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_a_library_may_be_installed_anywhere(folder, tmp_path):
    """As for one user alone, or by the system's package manager; it may warn as it is loaded."""
    path = tmp_path / folder / "reading.py"
    path.parent.mkdir()
    path.write_text("import gattn\ngattn.AttentionGraph.from_dense([[0.9, 0.8], [0.1, 0.2]])\n")
    spec = importlib.util.spec_from_file_location("reading", path)
    library = importlib.util.module_from_spec(spec)
    line = inspect.currentframe().f_lineno
    with pytest.warns(UserWarning, match="columns of the attention") as caught:
        spec.loader.exec_module(library)
    assert [(one.filename, one.lineno - line) for one in caught] == [(__file__, 2)]


def test_all_warnings_are_given_in_one_place():
    files = Path(gattn.__file__).parent.rglob("*.py")
    calls = {
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("warnings.warn")
    }
    assert calls == {"checks.py"}
