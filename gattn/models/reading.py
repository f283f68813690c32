"""Reads a call of a model's attention as graph attention: token graph, weight, normalizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gattn.engines import tiles
from gattn.engines.base import AttentionCall
from gattn.errors import CaptureError
from gattn.graph import TokenGraph
from gattn.models.interface import RoutedCall
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import widened
from gattn.weights.base import Pairs, PositionWeight, Tree, WeightFunction
from gattn.weights.dot import ScaledDotProduct
from gattn.weights.softcap import Softcap

_READABLE = ("eager", "sdpa")


class GivenBias(PositionWeight):
    """A score that the model itself computed for each pair, one per head, as edge features."""

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Read the features."""
        return cast("Tensor", pairs.features)

    def __repr__(self) -> str:
        return "GivenBias()"


@dataclass(frozen=True)
class Sides:
    """Which tokens of one batch element are real: their indices on each side."""

    element: int
    queries: Tensor
    keys: Tensor
    is_bipartite: bool


def read_call(
    routed: RoutedCall, sides: Sides, known: dict[object, tuple[Any, TokenGraph]]
) -> AttentionCall:
    """Read one batch element of a call, padding cut off.

    Parameters
    ----------
    routed : RoutedCall
        The call.
    sides : Sides
        The batch element and its real tokens.
    known : dict
        Masks that were read before, with their token graphs; filled here.

    Raises
    ------
    CaptureError
        Where the implementation's mask cannot be read.
    """
    query, key, value = (
        _real(x, sides.element, index)
        for x, index in (
            (routed.query, sides.queries),
            (routed.key, sides.keys),
            (routed.value, sides.keys),
        )
    )
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    allowed, bias = _mask(routed, sides)
    features = _sum_of_biases(routed, sides, allowed, bias)
    shape = (len(sides.queries), len(sides.keys))
    causal = _is_causal(routed)
    name = (id(routed.mask), sides.element, sides.is_bipartite, shape, causal)
    if name not in known:
        graph = _token_graph(allowed, shape, causal, sides.is_bipartite)
        known[name] = routed.mask, graph
    weight, normalizer = _weight(routed, features is not None), _normalizer(routed)
    call = AttentionCall(query, key, known[name][1], weight, normalizer, value, features)
    _verify(routed, sides, call)
    return call


def _real(x: Tensor, element: int, index: Tensor) -> Tensor:
    return widened(x[element : element + 1, :, index.to(x.device)])


def _is_causal(routed: RoutedCall) -> bool:
    if routed.implementation == "eager" or routed.mask is not None:
        return False
    told = routed.options.get("is_causal")
    causal = getattr(routed.module, "is_causal", True) if told is None else told
    return bool(causal) and routed.query.shape[2] > 1


def _mask(routed: RoutedCall, sides: Sides) -> tuple[Tensor | None, Tensor | None]:
    """Split a mask into booleans (queries, keys), and what it adds to scores, (heads, ...)."""
    mask = routed.mask
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or mask.dim() != 4 or routed.implementation not in _READABLE:
        raise CaptureError(
            f"{routed.name} runs the attention implementation {routed.implementation!r}, whose "
            f"mask gattn does not read; load the model with attn_implementation one of {_READABLE}."
        )
    mask = mask[sides.element if mask.shape[0] > 1 else 0]
    mask = mask[:, sides.queries.to(mask.device)] if mask.shape[1] > 1 else mask
    mask = mask[:, :, sides.keys.to(mask.device)] if mask.shape[2] > 1 else mask
    mask = mask.expand(-1, len(sides.queries), len(sides.keys))
    if mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=_wide(routed), device=mask.device)
        return mask.any(0), None if mask.shape[0] == 1 else zeros.masked_fill(~mask, -torch.inf)
    present = mask > torch.finfo(mask.dtype).min / 2
    allowed = present.any(0)
    bias = mask.to(_wide(routed)).masked_fill(~present, -torch.inf)
    return allowed, bias if bool((bias[:, allowed] != 0).any()) else None


def _wide(routed: RoutedCall) -> torch.dtype:
    """Say in which precision scores are computed: half precision is widened."""
    return widened(routed.query[:0]).dtype


def _sum_of_biases(
    routed: RoutedCall, sides: Sides, allowed: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Add up what the model adds to scores, as edge features (queries, keys, heads)."""
    position = routed.options.get("position_bias")
    terms = [] if bias is None else [bias]
    if position is not None:
        position = position[sides.element if position.shape[0] > 1 else 0].to(_wide(routed))
        terms.append(position[:, sides.queries][:, :, sides.keys])
    if not terms:
        return None
    total = sum(terms[1:], terms[0])
    if allowed is not None:
        total = total.masked_fill(~allowed, 0.0)
    heads = routed.query.shape[1]
    return total.expand(heads, *total.shape[1:]).permute(1, 2, 0).to(routed.query.device)


def _weight(routed: RoutedCall, has_bias: bool) -> WeightFunction:
    scale, usual = routed.options.get("scaling"), routed.query.shape[-1] ** -0.5
    if scale is not None and math.isclose(scale, usual, rel_tol=1e-12):
        scale = None
    weight: WeightFunction = ScaledDotProduct(scale)
    softcap = routed.options.get("softcap")
    if softcap is not None:
        weight = Softcap(weight, float(softcap))
    return weight + GivenBias() if has_bias else weight


def _normalizer(routed: RoutedCall) -> Normalizer:
    sink = routed.options.get("s_aux")
    return Softmax(sink=None if sink is None else sink.detach().to(_wide(routed)).reshape(-1))


def _token_graph(
    allowed: Tensor | None, shape: tuple[int, int], is_causal: bool, is_bipartite: bool
) -> TokenGraph:
    """Name the graph of a mask: a rule where it is one, and else its edges."""
    queries, keys = shape
    if is_bipartite:
        graph = TokenGraph.bipartite(queries, keys)
        if allowed is None or bool(allowed.all()):
            return graph
        return TokenGraph.from_mask(allowed.cpu(), is_bipartite=True)
    if allowed is None:
        return TokenGraph.causal(queries) if is_causal else TokenGraph.complete(queries)
    allowed = allowed.cpu()
    query, key = torch.arange(queries)[:, None], torch.arange(keys)
    reach = int((query - key)[allowed].max()) if bool(allowed.any()) else 0
    candidates = [
        TokenGraph.complete(queries),
        TokenGraph.causal(queries),
        TokenGraph.window(queries, reach + 1),
        TokenGraph.window(queries, max(reach, 1), causal=False),
    ]
    for graph in candidates:
        if torch.equal(graph.rule.allowed(query, key), allowed):
            return graph
    return TokenGraph.from_mask(allowed)


def _verify(routed: RoutedCall, sides: Sides, call: AttentionCall) -> None:
    """Prove on a few rows that this attention, times the values, is what the model computed."""
    count = len(sides.queries)
    rows = sorted({0, count // 3, 2 * count // 3, count - 1})
    expected = routed.output[sides.element, sides.queries[rows].to(routed.output.device)]
    expected = widened(expected).transpose(0, 1)
    assert call.value is not None
    found = torch.cat([_output_row(call, row) for row in rows], dim=1)
    broken = ~torch.isfinite(expected) | ~torch.isfinite(found)
    if bool(broken.any()):
        head, row, _ = broken.nonzero()[0].tolist()
        raise CaptureError(
            f"The attention in {routed.name} or its output is NaN or infinite at head {head}, "
            f"query {rows[row]}; expected numbers. Look for NaN or infinity in the weights and "
            "inputs."
        )
    kinds = {x.dtype for x in (routed.query, routed.key, routed.value, routed.output)}
    half = bool(kinds & {torch.float16, torch.bfloat16})
    size = max(float(expected.abs().max()), 1e-6)
    error = float((found - expected).abs().max()) / size
    if not error < (3e-2 if half else 1e-4):
        tensors = [k for k, v in routed.options.items() if isinstance(v, Tensor)]
        raise CaptureError(
            f"{routed.name} ({type(routed.module).__name__}) does not compute softmax attention as "
            f"gattn reads it: the relative error of its output is {error:.1e}. Its options are "
            f"{sorted(routed.options)}, tensors among them {tensors}. Nothing was captured."
        )


def _output_row(call: AttentionCall, row: int) -> Tensor:
    assert isinstance(call.graph, TokenGraph)
    assert call.value is not None
    keys = torch.arange(call.graph.num_keys, device=call.query.device)
    allowed = call.graph.rule.allowed(torch.full_like(keys[:1, None], row), keys[None])
    block = tiles.row_block(call, slice(row, row + 1), slice(0, len(keys)), allowed)
    return (block.attention @ call.value)[0]
