"""Reads self-attention as graphs.

Self-attention is message passing on a directed graph of tokens:
A_ij = exp w(i, j) / sum over k in N(i) of exp w(i, k), with any weight function w.

The words
---------
token graph
    Who may attend to whom. Nodes are token positions; the edge j -> i exists where query i may
    attend to key j. `TokenGraph`.
neighbourhood N(i)
    The in-edges of i: the keys that query i may attend to.
weight function w(i, j)
    The score of an edge, before normalizing. `WeightFunction`.
normalizer
    Turns the scores of a neighbourhood into attention A_ij. `Normalizer`.
attention graph
    The result of one head: its kept edges, each with its attention. `AttentionGraph`.
trace
    All attention graphs of one run of a model, by (layer, head). `AttentionTrace`.
keep
    Which edges of a head are kept: `All`, `Threshold`, `TopK`, `TopMass`.
edit
    A change to the graph inside a live model. `Edit`: `Cut`, `Scale`, `Restrict`, `Use`, `Swap`,
    `Only`, `Patch`, `Ablate`.
survey
    A dataset on disk: what a model attends to in each text of a corpus. `survey`, `Survey`.
part
    Some texts of a survey: one file in each of its folders, complete or absent.
engine
    A way to compute the same attention. Users never have to choose one.
reach
    All keys that any of some queries may attend to.
block, tile, piece
    Some queries against the keys that they reach; a piece of it is scored at once.
"""

import warnings
from importlib.util import find_spec

import lazy_loader

__version__ = "0.1.0"

__all__: list[str]
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _get(name)
    except AttributeError as error:
        if name in __all__:  # It is there, but its own module does not load.
            raise
        from gattn import analysis

        if name in dir(analysis):
            said = f"gattn has no {name!r}: it is gattn.analysis.{name}"
            # Of no object: Python would suggest a name of gattn's that looks alike.
            raise AttributeError(said, name=name, obj=None) from error
        raise AttributeError(f"gattn has no {name!r}: see dir(gattn)") from error


# Libraries that gattn loads would ask every notebook for ipywidgets, which gattn does not need.
warnings.filterwarnings("ignore", "IProgress not found")

if any(find_spec(name) is None for name in ("duckdb", "filelock", "pyarrow")):
    # Without the extra gattn[survey], these names raise an error that names it; do not list them.
    _names = {"CaptureGraphs", "RayPool", "Survey", "open_survey", "survey"}
    __all__ = [name for name in __all__ if name not in _names]

    def __dir__() -> list[str]:
        return __all__
