"""Writes the page on which models work."""

import textwrap
from collections.abc import Iterable, Sequence

import torch

from benchmarks.coverage.compared import TOLERANCE
from benchmarks.coverage.libraries import results
from benchmarks.coverage.verdicts import (
    CAPTURED,
    COMPLETE,
    NO_ATTENTION,
    NOT_BUILT,
    REFUSED,
    WRONG,
    Verdict,
)

_HEAD = """# Which models work

gattn reads attention wherever eager PyTorch computes it. To find out where that holds, models of
many libraries are built with random weights, run, captured and edited, each in a process of its
own:

{summary}
transformers is compared with its own eager code ([below](#transformers)); the others, and models of
transformers that return no attention, with what PyTorch's softmax kernels compute, seen below all
its functions, and with what the library itself shows. "Exact" means that

- the output while capturing is the same as without, bit for bit (or within 1e-06, where PyTorch's
  fast path of `nn.MultiheadAttention` goes off; it is then the same as without the fast path), and
  the model, its hooks and PyTorch's functions are unchanged afterwards;
- each captured layer equals one of the model's softmaxes, in all heads and sequences, within
  {tolerance:.0e} (in double precision within 1e-09 where large scores make single precision too
  coarse), and no softmax that weighs values of tokens is missing
  (where gattn gives tokens other positions than a tensor has slots, as in windows, up to their
  order, which gattn's own tests check);
- whatever attention the library shows by itself is among what was captured; where it shows what
  its heads or softmaxes are mixed into, as with talking heads, that is a weighted sum of the
  softmaxes captured in one module (and a constant, the bias of the layer that mixes them), with
  the same weights for all sequences, queries and keys;
- with the model's own scores put back by `Swap(weight=ModelScore())`, the output is the same, and
  cuts of heads and edges give the output that the same change of the softmax gives: in double
  precision within 1e-09, where the model's softmaxes run in it.

"Refused" means an error that gives the reason, and nothing captured. "Wrong" would be anything
else. A reason lies in the nature of a model where no softmax alone says what is attended to: it is
"changed" before it meets the values (made hard, signed, normalized again, mixed with noise, picked
from), "combined" with other softmaxes, or over channels or features as in linear attention. The
other reasons say what is not proved: tokens that "cannot be matched" with those of other layers,
that are moved and mixed, "in windows that overlap", or "picked or ordered by values", and texts
packed into one.

Models of your own are read in the same way: [any PyTorch model](concepts/any_model.md) says what
you see of them, also of recurrent decoders (translation, captions, text recognition), caches and
layers on graphs.

`python -m benchmarks.coverage --library NAME --markdown docs/models.md` writes a library's part of
this page. The libraries are installed for that run alone, in an environment of their own,
in the versions given with each part (tabpfn also needs `skrub`).

"""
_FIRST, _LATER = "## transformers\n", "<!-- other libraries -->\n"

_INTRODUCTION = """## transformers

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


def with_libraries(page: str) -> str:
    """Put what is known of all libraries around a page's part on transformers."""
    transformers = page[page.index(_FIRST) :].partition(_LATER)[0]
    head = _HEAD.format(summary=results.summary(), tolerance=TOLERANCE)
    return "\n".join([head + transformers.rstrip() + "\n", _LATER, results.parts()])


def page(verdicts: Sequence[Verdict]) -> str:
    """Write the table of transformers' models as Markdown."""
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
        f"### Captured and edited ({len(complete)})\n",
        "Through transformers' attention interface:\n",
        _names(one for one in complete if one.routed and not one.by_kernels),
        "Through torch's functions (proved on a small input first). * means that "
        '`attn_implementation="eager"` is needed:\n',
        _names(one for one in complete if not one.routed and not one.by_kernels),
        "Compared with PyTorch's softmax kernels, and exact as said above, since their eager code "
        "returns no attention, or not all of it as it is, or gives windows in place of patches:\n",
        _names(one for one in complete if one.by_kernels),
    ]
    if groups.get(CAPTURED):
        parts += [
            "### Captured, but not fully compared or not edited\n",
            _reasons(groups[CAPTURED]),
        ]
    if groups.get(WRONG):
        parts += ["### Wrong\n", _reasons(groups[WRONG])]
    parts += ["### Refused\n", _reasons(groups.get(REFUSED, []))]
    parts += [
        "### No attention\n",
        "No softmax kernel of these models weighs values of tokens. Most are convolutions, "
        "recurrent or mix tokens otherwise; MRA and YOSO approximate attention without a softmax, "
        "and SwiftFormer weighs tokens without comparing them.\n",
        _names(groups.get(NO_ATTENTION, [])),
        *_not_built(groups.get(NOT_BUILT, [])),
    ]
    return "\n".join(parts)


def _not_built(verdicts: Sequence[Verdict]) -> list[str]:
    """List what was not built by the cause."""
    causes: dict[str, list[Verdict]] = {"no model class": [], "ImportError": [], "": []}
    for one in verdicts:
        causes[next(cause for cause in causes if cause in one.reason)].append(one)
    parts, libraries, others = causes.values()
    return [
        "### Not built here\n",
        "Parts of other models, with no class that runs by itself:\n",
        _names(parts),
        "Models that need a library which was not installed (timm, natten, detectron2 ...):\n",
        _names(libraries),
        "Their tiny models did not build or did not run, so nothing is known about them:\n",
        _names(others),
    ]


def _names(verdicts: Iterable[Verdict]) -> str:
    names = [one.model_type + ("*" if one.implementation else "") for one in verdicts]
    return textwrap.fill(", ".join(names), 110, break_on_hyphens=False) + "\n"


def _reasons(verdicts: Sequence[Verdict]) -> str:
    lines = ["| model type | reason |", "|---|---|"]
    for one in verdicts:
        reason = " ".join(one.reason.replace("|", "/").split())
        lines.append(f"| {one.model_type} | {reason} |")
    return "\n".join(lines) + "\n"
