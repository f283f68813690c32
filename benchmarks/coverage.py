"""Which model types of transformers gattn captures and edits, and that it is right about them.

    python -m benchmarks.coverage [--models NAME ...] [--json PATH] [--markdown docs/models.md]

Each model type is built tiny and random, runs on a padded batch, and is held to its own eager
attention: what the module's eager function returned for each call, or where the attention is not
routed, the attentions that the model itself gives.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import textwrap
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gattn
from benchmarks import zoo
from gattn.errors import GattnError

Heads = NDArray[np.floating[Any]]
Captured = dict[tuple[str, int], list[Heads]]

TOLERANCE = 1e-5
SECONDS, BYTES = 60, 12 << 30
COMPLETE, CAPTURED, REFUSED, WRONG = "captured and edited", "captured", "refused", "WRONG"
NOT_BUILT, NO_ATTENTION = "not built", "no attention"


@dataclass(frozen=True)
class Verdict:
    """What came of one model type."""

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


class WrongError(Exception):
    """Gattn said something that is not so."""


def judge(model_type: str) -> Verdict:
    """Build a model type, and hold gattn to it."""
    try:
        specimen = zoo.specimen(model_type)
    except Exception as error:
        return Verdict(model_type, NOT_BUILT, " ".join(str(error).split())[:200])
    verdict = examine(specimen)
    if verdict.verdict == WRONG and "bit for bit" not in verdict.reason:
        with suppress(Exception):  # Not all models run in float64, which is finer.
            precise = examine(specimen.double())
            if precise.verdict == COMPLETE:
                return replace(precise, dtype="float64")
    return verdict


def examine(specimen: zoo.Specimen, is_eager: bool = False) -> Verdict:
    """Hold gattn to a model's own eager attention."""
    eager = specimen if is_eager else specimen.eager()
    if _difference(eager.run(), specimen.run()) > 1e-3:  # Its implementations are not the same.
        specimen = eager
    given, calls = own_attention(specimen, eager)
    told = Verdict(
        specimen.model_type,
        COMPLETE,
        model_class=type(specimen.model).__name__,
        routed=calls > 0,
        inputs=" ".join(name for name, value in specimen.inputs.items() if value is not None),
    )
    if not given and not calls:
        return replace(told, verdict=NO_ATTENTION)
    try:
        captured, error = check_capture(specimen, given, calls > 0)
        told = replace(told, attentions=len(captured), error=error)
    except GattnError as error_:
        if not calls and specimen is not eager:  # Only eager code has a softmax to be seen.
            return replace(examine(eager, is_eager=True), implementation="eager")
        return replace(told, verdict=REFUSED, reason=str(error_))
    except Exception as error_:
        return replace(told, verdict=WRONG, reason=_reason(error_))
    try:
        check_edits(specimen, captured)
    except GattnError as error_:
        return replace(told, verdict=CAPTURED, reason=str(error_))
    except Exception as error_:
        return replace(told, verdict=WRONG, reason=_reason(error_))
    if len(captured) > len(given):
        reason = f"the model gives {len(given)} of its {len(captured)} attentions to compare with"
        return replace(told, verdict=CAPTURED, reason=f"{reason}; these are right")
    return told


def _reason(error: Exception) -> str:
    return f"{'' if isinstance(error, WrongError) else type(error).__name__ + ': '}{error}"


# The oracle


def own_attention(specimen: zoo.Specimen, eager: zoo.Specimen) -> tuple[list[Heads | None], int]:
    """Give the attention of each call by the model's own eager code, and how many were routed."""
    calls: list[tuple[Any, Tensor | None]] = []
    with _recorded(calls):
        eager.run()
    if calls:
        return _layers(calls), len(calls)
    try:
        output = eager.run(output_attentions=True)
    except TypeError:
        return [], 0
    return [x.detach().double().numpy() for x in _attentions(output)], 0


def _layers(calls: list[tuple[Any, Tensor | None]]) -> list[Heads | None]:
    """Put together what a module computes in pieces, one call for each packed image."""
    layers: list[Heads | None] = []
    for (module, weights), (before, last) in zip(calls, [(None, None), *calls], strict=False):
        own = None if weights is None else weights.detach().double().numpy()
        if module is before and own is not None and last is not None and len(own) == 1:
            whole = layers[-1]
            assert whole is not None
            seen = whole.shape[2]
            own = np.pad(own, ((0, 0), (0, 0), (seen, 0), (seen, 0)))
            own[:, :, :seen, :seen] = whole
            layers[-1] = own
        else:
            layers.append(own)
    return layers


@contextmanager
def _recorded(calls: list[tuple[Any, Tensor | None]]) -> Iterator[None]:
    """Keep what each routed attention function returns as its weights, and for which module."""
    from transformers import AttentionInterface

    original = AttentionInterface.get_interface

    def answer(interface: Any, name: str, default: Any) -> Any:
        function = original(interface, name, default)

        def call(module: Any, *args: Any, **options: Any) -> Any:
            result = function(module, *args, **options)
            calls.append((module, result[1]))
            return result

        return call

    AttentionInterface.get_interface = answer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def _attentions(output: Any) -> Iterator[Tensor]:
    """Find the attentions in an output, those of models inside it too."""
    for name, value in output.items() if isinstance(output, dict) else ():
        if name.endswith("attentions"):
            yield from (x for x in _flat(value) if x.dim() == 4)
        elif isinstance(value, dict):
            yield from _attentions(value)


def _flat(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for part in nested:
            yield from _flat(part)


# The checks


def check_capture(
    specimen: zoo.Specimen, given: list[Heads | None], is_routed: bool = True
) -> tuple[Captured, float]:
    """Check that capturing changes nothing, and shows each of the model's own attentions."""
    model = specimen.model
    plain = specimen.run()
    with suppress(Exception):  # Transformers sets hooks of its own, and models settle themselves.
        specimen.run(output_attentions=True)
    before = _state(model)
    if not _same(plain, specimen.run()):
        raise ValueError("the model gives another output each time")
    with gattn.capturing(model, keep=gattn.All()) as run:
        watched = specimen.run()
    if not _same(plain, watched):
        raise WrongError("the output while capturing is not bit for bit the plain one")
    if _state(model) != before:
        raise WrongError("the configuration or the hooks are not what they were before")
    if not _same(plain, specimen.run()):
        raise WrongError("the output is not bit for bit what it was before")
    captured = _captured(run)
    return captured, _compare(captured, given, specimen.inputs, is_routed)


def _captured(run: Any) -> Captured:
    """Give each layer's attention as dense arrays, (heads, queries, keys) for each sequence."""
    found: Captured = {}
    for trace in run.traces:
        for name, stack in trace.stacks.items():
            for layer in stack.layers:
                heads = [graph for place, graph in stack.items() if place[0] == layer]
                dense = np.stack([graph.to_dense() for graph in heads])
                found.setdefault((name, layer), []).append(dense)
    return found


def _compare(
    captured: Captured, given: list[Heads | None], inputs: dict[str, Any], is_routed: bool
) -> float:
    """Find each attention of the model among those captured, and none besides.

    Models that are not routed may give some of their attentions only.
    """
    if len(captured) < len(given) or (is_routed and len(captured) > len(given)):
        raise WrongError(f"{len(captured)} layers were captured, and the model has {len(given)}")
    left, largest = dict(captured), 0.0
    for number, own in enumerate(given):
        if own is None:  # Some eager functions give no weights: gattn's own proof has to do.
            continue
        errors = {place: _error(seen, own, inputs) for place, seen in left.items()}
        place = min(errors, key=lambda place: errors[place])
        if not errors[place] < TOLERANCE:
            shapes = {place: seen[0].shape for place, seen in left.items()}
            raise WrongError(
                f"attention {number} of the model, {own.shape}, is not among those captured: "
                f"the nearest, {place}, is off by {errors[place]:.1e}; {shapes}"
            )
        largest = max(largest, errors[place])
        del left[place]
    return largest


def _error(seen: list[Heads], own: Heads, inputs: dict[str, Any]) -> float:
    """Compare the real tokens of each sequence, which may have windows."""
    if len(own) == 1 < len(seen):  # The images of several texts, packed into one sequence.
        seen = [_diagonal(seen)]
    windows = len(own) // len(seen)
    if len(own) % len(seen) or seen[0].shape[0] != own.shape[1]:
        return float("inf")
    largest = 0.0
    for number, mine in enumerate(seen):
        whole = _block_diagonal(own[number * windows : (number + 1) * windows])
        queries, keys = mine.shape[1:]
        if queries > whole.shape[1] or keys > whole.shape[2]:
            return float("inf")
        if not _may_be(queries, whole.shape[1], number, inputs):
            return float("inf")
        rows, columns = np.arange(queries), np.arange(keys)
        read = whole.any((0, 1)).nonzero()[0]
        if keys == len(read):  # Padding need not be on the right.
            columns = read
            rows = read if queries == keys and whole.shape[1] == whole.shape[2] else rows
        own_rows = whole[:, rows]
        rest = np.abs(np.delete(own_rows, columns, axis=2)).sum(-1)
        difference = np.abs(own_rows[:, :, columns] - mine)
        if _leaves_out_sinks(own_rows, mine):
            shares = mine / np.maximum(mine.sum(-1, keepdims=True), 1e-12)
            difference = np.abs(own_rows[:, :, columns] - shares)
        largest = max(largest, difference.max(initial=0), rest.max(initial=0))
    return float(largest)


def _leaves_out_sinks(own: Heads, mine: Heads) -> bool:
    """Say whether an eager function gives its weights before a sink takes its share of them."""
    full, less = own.sum(-1), mine.sum(-1)
    return bool(np.allclose(full, 1, atol=TOLERANCE) and (less < 0.999).any() and less.all())


def _may_be(real: int, length: int, number: int, inputs: dict[str, Any]) -> bool:
    """Say whether so many tokens of a sequence can be real: all, or what a mask of inputs says."""
    masks = [x for name, x in inputs.items() if name.endswith("attention_mask") and x is not None]
    known = [mask for mask in masks if mask.shape[1] == length]
    return real == length or not known or any(real == int(mask[number].sum()) for mask in known)


def _block_diagonal(windows: Heads) -> Heads:
    """Put the windows (windows, heads, queries, keys) of a sequence on a diagonal."""
    return _diagonal(list(windows))


def _diagonal(blocks: list[Heads]) -> Heads:
    """Put blocks (heads, queries, keys) on a diagonal."""
    heads, rows, columns = (sum(block.shape[n] for block in blocks) for n in range(3))
    whole = np.zeros((heads // len(blocks), rows, columns), blocks[0].dtype)
    row = column = 0
    for block in blocks:
        whole[:, row : row + block.shape[1], column : column + block.shape[2]] = block
        row, column = row + block.shape[1], column + block.shape[2]
    return whole


def check_edits(specimen: zoo.Specimen, captured: Captured) -> None:
    """Check that the model's own scores change nothing, and that one cut edge does what it says."""
    plain = specimen.run()
    stacks = list(dict.fromkeys(stack for stack, _ in captured))
    own = [gattn.Swap(weight=gattn.ModelScore(), stack=stack) for stack in stacks]
    with gattn.edited(specimen.model, *own):
        swapped = specimen.run()
    if (difference := _difference(swapped, plain)) > TOLERANCE:
        raise WrongError(f"with its own scores the output is off by {difference:.1e}")
    for stack in stacks:
        _check_cut(specimen, plain, captured, stack)
    if not _same(plain, specimen.run()):
        raise WrongError("the model is not bit for bit what it was before the edits")


def _check_cut(specimen: zoo.Specimen, plain: Any, captured: Captured, stack: str) -> None:
    """Cut an edge of the first layer: it is gone, its row renormalised, and the output changes."""
    layer = min(layer for name, layer in captured if name == stack)
    before = captured[stack, layer][0]
    head = min(1, len(before) - 1)
    edges = _noticeable(before[head])
    for query, key in edges:
        cut = gattn.Cut(layer=layer, head=head, query=query, key=key, stack=stack)
        with (
            gattn.edited(specimen.model, cut),
            gattn.capturing(specimen.model, keep=gattn.All()) as run,
        ):
            output = specimen.run()
        after = _captured(run)[stack, layer][0]
        expected = before.copy()
        expected[head, query] /= 1 - before[head, query, key]
        expected[head, query, key] = 0
        if after[head, query, key] or np.abs(after - expected).max() > TOLERANCE:
            raise WrongError(f"the cut of {query, key} in {stack} gives another attention")
        later = [place for place in captured if place[0] == stack and place[1] > layer]
        if _difference(output, plain) > 1e-7 or any(
            np.abs(now - was).max() > 1e-7
            for place in later
            for now, was in zip(_captured(run)[place], captured[place], strict=True)
        ):
            return
    if edges:
        raise WrongError(f"cutting edges of the {stack} changes nothing that comes after")


def _noticeable(attention: Heads) -> list[tuple[int, int]]:
    """Find some edges that matter, from different rows, and are not all of their row."""
    usable = np.where(attention < 0.9, attention, 0)
    best = usable.argmax(1)
    rows = np.argsort(-usable[np.arange(len(usable)), best])[:4]
    return [(int(row), int(best[row])) for row in rows if usable[row, best[row]] > 0.02]


def _state(model: torch.nn.Module) -> Any:
    from transformers import AttentionInterface

    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    config: Any = model.config
    return config.to_dict(), hooks, AttentionInterface.get_interface


def _same(one: Any, other: Any) -> bool:
    a, b = list(zoo.tensors(one)), list(zoo.tensors(other))
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _difference(one: Any, other: Any) -> float:
    """Give the largest difference of two outputs, relative to the size of each tensor."""
    a, b = list(zoo.tensors(one)), list(zoo.tensors(other))
    if [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    sizes = [float(x.abs().max()) if x.numel() else 0.0 for x in b]
    pairs = zip(a, b, sizes, strict=True)
    return max(float((x - y).abs().max()) / size for x, y, size in pairs if size)


# All model types, each in a process of its own


def judge_all(names: Sequence[str], workers: int = 2) -> Iterator[Verdict]:
    """Judge model types, each in a process that may not take too long or too much memory."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < workers:
            name, queue = waiting.pop(0), context.SimpleQueue()
            process = context.Process(target=_work, args=(name, queue))
            process.start()
            running[name] = process, queue, time.monotonic()
        time.sleep(0.01)
        for name, (process, queue, start) in list(running.items()):
            late = time.monotonic() - start > SECONDS
            if queue.empty() and process.is_alive() and not late:
                continue
            reason = "it takes too long" if late else "the process ended"
            yield Verdict(name, NOT_BUILT, reason) if queue.empty() else Verdict(**queue.get())
            process.kill()
            process.join()
            del running[name]


def _work(name: str, queue: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    queue.put(asdict(judge(name)))


# The page


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--models", nargs="+", default=list(zoo.MODEL_TYPES), metavar="NAME")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--markdown", metavar="PATH")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    verdicts = []
    for verdict in judge_all(options.models):
        verdicts.append(verdict)
        if len(options.models) < 50 or verdict.verdict == WRONG:
            print(f"{verdict.model_type}: {verdict.verdict} {verdict.reason}", flush=True)
    counts = {v.verdict: sum(w.verdict == v.verdict for w in verdicts) for v in verdicts}
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(verdict) for verdict in verdicts], file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(page(verdicts))


if __name__ == "__main__":
    main()
