"""Surveys: a model over a corpus, every head's graph and scores in a folder of Parquet files."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gattn.surveys.comparison import compare_heads
    from gattn.surveys.statistics import head_statistics

_HOME_OF = {"compare_heads": "comparison", "head_statistics": "statistics"}

__all__ = ["compare_heads", "head_statistics"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gattn.surveys' has no attribute {name!r}")
    return getattr(import_module(f"gattn.surveys.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
