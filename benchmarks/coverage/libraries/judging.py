"""Judges the models of one library."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.coverage.apart import each_apart
from benchmarks.coverage.libraries.case import LeftOutError
from benchmarks.coverage.libraries.checks import examine
from benchmarks.coverage.libraries.verdict import LEFT_OUT, NOT_RUN, Verdict
from benchmarks.zoo.libraries import FILES

SECONDS = 900


def models(library: str) -> Any:
    """Return the file that builds a library's models."""
    return importlib.import_module(f"benchmarks.zoo.libraries.{FILES[library]}")


def judge(library: str, name: str) -> Verdict:
    """Build a model, and check gattn on it."""
    built = models(library)
    try:
        case = built.build(name)
        case.run()
    except LeftOutError as error:
        return Verdict(name, LEFT_OUT, str(error))
    except Exception as error:
        return Verdict(
            name, NOT_RUN, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )
    return getattr(built, "examine", examine)(case)


def judge_all(library: str, names: Sequence[str]) -> Iterator[Verdict]:
    """Judge models, each in a process of its own, one after the other."""
    judge("nn", models("nn").names()[0])  # so that all processes have imported what it takes
    for name, verdict in each_apart(names, partial(judge, library), workers=1, seconds=SECONDS):
        yield Verdict(name, NOT_RUN, verdict) if isinstance(verdict, str) else verdict
