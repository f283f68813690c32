"""What was found about one model of a library."""

from __future__ import annotations

from dataclasses import dataclass, field

EXACT, CAPTURED, REFUSED, WRONG = "exact", "captured in part, or not edited", "refused", "wrong"
NO_ATTENTION, NOT_RUN, LEFT_OUT = "no attention", "did not run", "left out"
ALL = (EXACT, CAPTURED, REFUSED, WRONG, NO_ATTENTION, LEFT_OUT, NOT_RUN)


@dataclass(frozen=True)
class Verdict:
    """The result for one model."""

    name: str
    verdict: str
    reason: str = ""
    attentions: int = 0
    """How many layers' attention was captured, each equal to the model's own."""
    shown: int = 0
    """How many of these the library shows by itself."""
    edits: int = 0
    """How many cuts gave the same output as the same change below all functions."""
    error: float = 0.0
    fast_path: bool = False
    """Whether the output differs only since PyTorch's fast path is off."""
    stacks: dict[str, int] = field(default_factory=dict)


class WrongError(Exception):
    """Gattn was wrong about a model."""
