"""The checks: capturing and edits on one model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch

import gattn
from benchmarks import zoo
from benchmarks.coverage import compared
from benchmarks.coverage.compared import Captured, Heads, WrongError


def check_capture(
    specimen: zoo.Specimen, given: list[Heads | None], is_routed: bool = True
) -> tuple[Captured, float]:
    """Check that capturing changes nothing, and shows each of the model's own attentions."""
    model = specimen.model
    plain = specimen.run()
    with suppress(Exception):  # Transformers sets hooks of its own on the first run.
        specimen.run(output_attentions=True)
    before = _state(model)
    if not same(plain, specimen.run()):
        raise ValueError("the model gives another output each time")
    with gattn.capturing(model, keep=gattn.All()) as run:
        watched = specimen.run()
    if not same(plain, watched):
        raise WrongError("the output while capturing is not bit for bit the plain one")
    if _state(model) != before:
        raise WrongError("the configuration or the hooks are not what they were before")
    if not same(plain, specimen.run()):
        raise WrongError("the output is not bit for bit what it was before")
    captured = _captured(run)
    beside = sum(isinstance(one, torch.nn.MultiheadAttention) for one in model.modules())
    return captured, compared.compare(captured, given, specimen.inputs, is_routed, beside)


def _captured(run: Any) -> Captured:
    """Return each layer's attention as dense arrays, (heads, queries, keys) for each sequence."""
    found: Captured = {}
    for trace in run.traces:
        for name, stack in trace.stacks.items():
            for layer in stack.layers:
                heads = [graph for place, graph in stack.items() if place[0] == layer]
                dense = np.stack([graph.to_dense() for graph in heads])
                found.setdefault((name, layer), []).append(dense)
    return found


def check_edits(specimen: zoo.Specimen, captured: Captured) -> None:
    """Check that the model's own scores change nothing, and that cutting an edge does just that."""
    plain = specimen.run()
    stacks = list(dict.fromkeys(stack for stack, _ in captured))
    own = [gattn.Swap(weight=gattn.ModelScore(), stack=stack) for stack in stacks]
    with gattn.edited(specimen.model, *own):
        swapped = specimen.run()
    if (error := difference(swapped, plain)) > compared.TOLERANCE:
        raise WrongError(f"with its own scores the output is off by {error:.1e}")
    for stack in stacks:
        _check_cut(specimen, plain, captured, stack)
    if not same(plain, specimen.run()):
        raise WrongError("the model is not bit for bit what it was before the edits")


def _check_cut(specimen: zoo.Specimen, plain: Any, captured: Captured, stack: str) -> None:
    """Cut an edge of the first layer: it is gone, its row renormalized, and the output changes."""
    layer = min(layer for name, layer in captured if name == stack)
    before = captured[stack, layer][0]
    head = min(1, len(before) - 1)
    edges = _noticeable(before[head])
    least = torch.finfo(specimen.model.dtype).eps
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
        if after[head, query, key] or np.abs(after - expected).max() > compared.TOLERANCE:
            raise WrongError(f"the cut of {query, key} in {stack} gives another attention")
        later = [place for place in captured if place[0] == stack and place[1] > layer]
        if difference(output, plain) > least or any(
            np.abs(now - was).max() > least
            for place in later
            for now, was in zip(_captured(run)[place], captured[place], strict=True)
        ):
            return
    if edges:
        raise WrongError(f"cutting edges of the {stack} changes nothing that comes after")


def _noticeable(attention: Heads) -> list[tuple[int, int]]:
    """Find edges from different rows that matter but do not hold all attention of their row."""
    usable = np.where(attention < 0.9, attention, 0)
    best = usable.argmax(1)
    rows = np.argsort(-usable[np.arange(len(usable)), best])[:4]
    return [(int(row), int(best[row])) for row in rows if usable[row, best[row]] > 0.02]


def _state(model: torch.nn.Module) -> Any:
    from transformers import AttentionInterface

    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    config: Any = model.config
    return config.to_dict(), hooks, AttentionInterface.get_interface


def same(one: Any, other: Any) -> bool:
    a, b = list(zoo.tensors(one)), list(zoo.tensors(other))
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of two outputs, relative to the size of each tensor."""
    a, b = list(zoo.tensors(one)), list(zoo.tensors(other))
    if [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    sizes = [float(x.abs().max()) if x.numel() else 0.0 for x in b]
    pairs = zip(a, b, sizes, strict=True)
    return max(float((x - y).abs().max()) / size for x, y, size in pairs if size)
