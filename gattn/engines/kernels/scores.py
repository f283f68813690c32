"""A score as kernels know it: a dot product, a soft cap, and a number for each offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gattn.normalizers import Softmax
from gattn.normalizers.base import widened
from gattn.weights.base import WeightFunction, map_tree
from gattn.weights.pairs import CappedForm, Pairs

if TYPE_CHECKING:
    from gattn.engines.call import AttentionCall


class KernelScore(NamedTuple):
    r"""A score over the temperature, of the query i and the key j, counted from 0.

    It is :math:`c \tanh(s \, q_i \cdot k_j + a_{j-i}) + b_{j-i}`, or without a cap
    :math:`s \, q_i \cdot k_j + b_{j-i}`. `query` is (B, H, Q, D), `key` (B, H, K, D); `inside` and
    `outside`, a and b, are (H, Q + K - 1) or None: the column Q - 1 is that of the offset 0.
    """

    query: Tensor
    key: Tensor
    scale: float
    inside: Tensor | None
    cap: float | None
    outside: Tensor | None


def why_not(call: AttentionCall) -> str | None:
    """Return why kernels do not know a call's attention, or None if they do."""
    if type(call.normalizer) is not Softmax:
        return "the normalizer is not a softmax"
    if not call.batch_heads:
        return "there are no heads"
    form = _form_of(call)
    if form is None:
        return "the score is not a dot product with terms of pairs, nor a soft cap on one"
    if form.form.query is None:
        return "the score has no dot product"
    for term in (*form.form.bias, *form.bias):
        if not term.is_relative:
            return f"{term} does not depend on offsets alone"
    return None


def kernel_score(call: AttentionCall) -> KernelScore:
    """Describe the score of a call for which `why_not` gives None."""
    form = _form_of(call)
    assert form is not None
    query, key, scale, temperature = *_operands(call, form), form.form.scale, _temperature(call)
    inner, outer = (_on_offsets(call, terms) for terms in (form.form.bias, form.bias))
    if form.cap is None:
        outside = _over(inner, temperature)
        return KernelScore(query, key, scale / temperature, None, None, outside)
    inside, outside = _over(inner, form.cap), _over(outer, temperature)
    return KernelScore(query, key, scale / form.cap, inside, form.cap / temperature, outside)


def sink_logits(call: AttentionCall) -> Tensor | None:
    """Return the logit of each head's sink over the temperature, (1 or H, 1), if there is one."""
    assert isinstance(call.normalizer, Softmax)
    wide = widened(call.query[:0])
    return call.normalizer.logit(wide) if call.normalizer.has_sink else None


def _temperature(call: AttentionCall) -> float:
    assert isinstance(call.normalizer, Softmax)
    return call.normalizer.temperature


def _form_of(call: AttentionCall) -> CappedForm | None:
    """Write the score with a cap, in at least float32."""
    return call.weight.capped_form(*(map_tree(widened, side) for side in call.sides))


def _operands(call: AttentionCall, form: CappedForm) -> tuple[Tensor, Tensor]:
    """Return both sides of the dot product, in half precision if they were given so."""
    plain = call.weight.capped_form(*call.sides)
    if plain and plain.form.query is call.query and plain.form.key is call.key:
        return call.query, call.key
    assert form.form.query is not None
    assert form.form.key is not None
    lead = call.query.shape[:2]
    query, key = (x.expand(*lead, *x.shape[2:]) for x in (form.form.query, form.form.key))
    return query, key


def _on_offsets(call: AttentionCall, terms: tuple[WeightFunction, ...]) -> Tensor | None:
    """Add up terms for each offset: (H, Q + K - 1)."""
    heads, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    offset = torch.arange(1 - queries, keys, device=call.query.device) - call.graph.query_offset
    pairs, total = Pairs(torch.zeros_like(offset)[:, None], offset[:, None]), None
    for term in terms:
        scores = widened(term(None, None, pairs)).expand(len(offset), heads).T
        total = scores if total is None else total + scores
    return total


def _over(numbers: Tensor | None, divisor: float) -> Tensor | None:
    return None if numbers is None else numbers / divisor
