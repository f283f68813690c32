"""Judges model types: each is built, captured and edited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import nn

from benchmarks import zoo
from benchmarks.coverage.apart import each_apart
from benchmarks.coverage.by_kernels import attends_unseen, examine_by_kernels
from benchmarks.coverage.checks import check_capture, check_edits, difference
from benchmarks.coverage.compared import WrongError
from benchmarks.coverage.libraries import verdict as kernels
from benchmarks.coverage.oracle import own_attention
from gattn.errors import GattnError
from gattn.models.doors.proof.grouping import attends_in_groups
from gattn.models.run.opening import is_read_as_any

SECONDS = 60
COMPLETE, CAPTURED, REFUSED, WRONG = "captured and edited", "captured", "refused", "WRONG"
NOT_BUILT, NO_ATTENTION = "not built", "no attention"
_SAME = {
    kernels.EXACT: COMPLETE,
    kernels.CAPTURED: CAPTURED,
    kernels.REFUSED: REFUSED,
    kernels.WRONG: WRONG,
    kernels.NO_ATTENTION: NO_ATTENTION,
    kernels.NOT_RUN: NOT_BUILT,
}


@dataclass(frozen=True)
class Verdict:
    """The result for one model type."""

    model_type: str
    verdict: str
    reason: str = ""
    model_class: str = ""
    routed: bool = False
    attentions: int = 0
    error: float = 0.0
    inputs: str = ""
    dtype: str = "float32"
    implementation: str = ""
    by_kernels: bool = False
    """Whether it was compared with PyTorch's softmax kernels, not with its own attention."""


def judge(model_type: str) -> Verdict:
    """Build a model of this type, and check gattn on it."""
    try:
        specimen = zoo.specimen(model_type)
    except Exception as error:
        return Verdict(model_type, NOT_BUILT, " ".join(str(error).split())[:200])
    verdict = examine(specimen)
    if verdict.verdict == WRONG and "bit for bit" not in verdict.reason:
        with suppress(Exception):  # float64 is more precise, but not all models run in it.
            precise = examine(specimen.double())
            if precise.verdict == COMPLETE:
                return replace(precise, dtype="float64")
    return verdict


def _has_windows(model: nn.Module) -> bool:
    return is_read_as_any(model) and attends_in_groups(model)


def examine(specimen: zoo.Specimen, is_eager: bool = False) -> Verdict:
    """Compare gattn with a model's own eager attention."""
    told = Verdict(
        specimen.model_type,
        COMPLETE,
        model_class=type(specimen.model).__name__,
        inputs=" ".join(name for name, value in specimen.inputs.items() if value is not None),
    )
    eager = specimen if is_eager else specimen.eager()
    try:
        is_other = difference(eager.run(), specimen.run()) > 1e-3
        specimen = eager if is_other else specimen  # The model's implementations differ.
        given, calls = own_attention(specimen, eager)
    except Exception:  # Its eager code does not run.
        return _by_kernels(specimen, told)
    told = replace(told, routed=calls > 0)
    if (not given and not calls) or (calls and _has_windows(specimen.model)):
        return _by_kernels(specimen, told)  # Its own attention has slots for tokens.
    unseen = attends_unseen(specimen) if calls else []
    try:
        captured, error = check_capture(specimen, given, calls > 0)
        told = replace(told, attentions=len(captured), error=error)
    except GattnError as error_:
        if not calls and specimen is not eager:  # Only eager code has a softmax to watch.
            return replace(examine(eager, is_eager=True), implementation="eager")
        return replace(told, verdict=REFUSED, reason=str(error_))
    except Exception as error_:
        if not calls or unseen:  # It may return attention in another shape, or not all of it.
            return _by_kernels(specimen, told)
        return replace(told, verdict=WRONG, reason=_reason(error_))
    try:
        check_edits(specimen, captured)
    except GattnError as error_:
        return replace(told, verdict=CAPTURED, reason=str(error_))
    except WrongError:  # Edges whose values are all the same may be cut without any effect.
        return _by_kernels(specimen, told)
    except Exception as error_:
        return replace(told, verdict=WRONG, reason=_reason(error_))
    if len(captured) > len(given):
        return _by_kernels(specimen, told)
    if unseen:
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        reason = f"a warning says that {unseen[0]}{more} cannot be shown; all else is exact"
        return replace(told, verdict=CAPTURED, reason=reason)
    return told


def _by_kernels(specimen: zoo.Specimen, told: Verdict) -> Verdict:
    """Compare gattn with PyTorch's softmax kernels, where a model returns too little."""
    found = examine_by_kernels(specimen)
    return replace(
        told,
        verdict=_SAME[found.verdict],
        reason=found.reason if found.verdict != kernels.NO_ATTENTION else "",
        attentions=found.attentions,
        error=found.error,
        by_kernels=True,
    )


def _reason(error: Exception) -> str:
    return f"{'' if isinstance(error, WrongError) else type(error).__name__ + ': '}{error}"


def judge_all(names: Sequence[str], workers: int = 2) -> Iterator[Verdict]:
    """Judge model types, each in a process that may not take too long or too much memory."""
    for name, verdict in each_apart(names, judge, workers=workers, seconds=SECONDS):
        yield Verdict(name, NOT_BUILT, verdict) if isinstance(verdict, str) else verdict
