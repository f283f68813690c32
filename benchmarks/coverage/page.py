"""Writes the page on which models work."""

import textwrap
from collections.abc import Iterable, Sequence

import torch

from benchmarks.coverage.compared import TOLERANCE
from benchmarks.coverage.verdicts import (
    CAPTURED,
    COMPLETE,
    NO_ATTENTION,
    NOT_BUILT,
    REFUSED,
    WRONG,
    Verdict,
)

_INTRODUCTION = """# Which models work

Transformers {transformers} registers {types} model types. For each, a tiny random model was built
and run on a padded batch, with torch {torch}; {built} of them ran. This page was written by
`python -m benchmarks.coverage --markdown docs/models.md`. "Captured and edited" means that

- the output while capturing is the same as without, bit for bit, and the model is unchanged
  afterwards;
- the captured attention of every layer, head and sequence equals the model's own, from its eager
  code, within {tolerance:.0e}, and nothing else is captured (if eager code returns its weights
  before a sink takes its share, they are compared as shares);
- with the model's own scores put back by `Swap(weight=ModelScore())`, the output is the same
  within {tolerance:.0e} of its size;
- when one edge in the first layer of each stack is cut, it is gone, its row is renormalized,
  everything else in that layer is unchanged, and what comes after changes.

Whether a family works depends on how its code computes attention, not on the size of a model. What
gattn cannot read it refuses, with the reason; each call of a routed model is checked against the
model's own output while it runs.
"""


def page(verdicts: Sequence[Verdict]) -> str:
    """Write the table of models as Markdown."""
    import transformers

    groups: dict[str, list[Verdict]] = {}
    for one in sorted(verdicts, key=lambda one: one.model_type):
        groups.setdefault(one.verdict, []).append(one)
    complete = groups.get(COMPLETE, [])
    counted = ", ".join(f"{len(some)} {name}" for name, some in sorted(groups.items()))
    parts = [
        _INTRODUCTION.format(
            transformers=transformers.__version__,
            torch=torch.__version__.split("+")[0],
            types=len(verdicts),
            built=len(verdicts) - len(groups.get(NOT_BUILT, [])),
            tolerance=TOLERANCE,
        ),
        f"In numbers: {counted}.\n",
        f"## Captured and edited ({len(complete)})\n",
        "Through transformers' attention interface:\n",
        _names(one for one in complete if one.routed),
        "Through their softmax (no queries and keys; checked on a small input first). * means that "
        '`attn_implementation="eager"` is needed:\n',
        _names(one for one in complete if not one.routed),
    ]
    if groups.get(CAPTURED):
        parts += ["## Captured, but not fully compared or not edited\n", _reasons(groups[CAPTURED])]
    if groups.get(WRONG):
        parts += ["## Wrong\n", _reasons(groups[WRONG])]
    parts += ["## Refused\n", _reasons(groups.get(REFUSED, []))]
    parts += ["## No attention that the model exposes\n", _names(groups.get(NO_ATTENTION, []))]
    parts += [
        "## Not built here\n",
        "Their tiny models did not build or did not run, so nothing is known about them:\n",
    ]
    return "\n".join([*parts, _names(groups.get(NOT_BUILT, []))])


def _names(verdicts: Iterable[Verdict]) -> str:
    names = [one.model_type + ("*" if one.implementation else "") for one in verdicts]
    return textwrap.fill(", ".join(names), 110, break_on_hyphens=False) + "\n"


def _reasons(verdicts: Sequence[Verdict]) -> str:
    lines = ["| model type | reason |", "|---|---|"]
    for one in verdicts:
        reason = " ".join(one.reason.replace("|", "/").split())
        lines.append(f"| {one.model_type} | {reason} |")
    return "\n".join(lines) + "\n"
