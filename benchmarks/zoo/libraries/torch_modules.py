"""torch.nn: 384 variants of nn.MultiheadAttention, and the transformers made of it."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.coverage.libraries.softmaxes import slow_path

_DIM, _HEADS, _QUERIES, _KEYS, _BATCH = 24, 4, 6, 6, 2
_LAYOUTS = ("batch-first", "sequence-first", "unbatched")
_INPUTS = ("self", "cross")
_EXTRA = ("plain", "bias-kv", "zero-attn", "bias-kv+zero-attn")
_MASKS = ("no-mask", "bool-mask", "float-mask", "causal")
_PADDING = ("all-real", "padded")
_WEIGHTS = ("no-weights", "weights")
_OTHERS = (
    "batch-first/self/plain/mask-per-head/all-real/no-weights",
    "batch-first/self/plain/mask-per-head/padded/weights",
    "batch-first/self/plain/float-mask/float-padded/no-weights",
    "batch-first/self/plain/no-mask/all-real/no-weights/no-bias",
    "batch-first/self/plain/no-mask/all-real/weights/averaged",
    "sequence-first/cross/bias-kv/no-mask/padded/weights/averaged",
    "batch-first/self/plain/no-mask/all-real/no-weights/one-head",
)


def names() -> list[str]:
    variants = product(_LAYOUTS, _INPUTS, _EXTRA, _MASKS, _PADDING, _WEIGHTS)
    attention = ["/".join(variant) for variant in variants] + list(_OTHERS)
    return [f"MultiheadAttention/{one}" for one in attention] + list(_transformers())


def build(name: str) -> Case:
    torch.manual_seed(0)
    kind, _, options = name.partition("/")
    return _attention(name, set(options.split("/"))) if options else _transformers()[kind](kind)


def _attention(name: str, told: set[str]) -> Case:
    is_cross = "cross" in told
    keys = _KEYS + 2 if is_cross else _QUERIES
    extra = next(one for one in told if one in _EXTRA)
    module = nn.MultiheadAttention(
        _DIM,
        1 if "one-head" in told else _HEADS,
        bias="no-bias" not in told,
        kdim=20 if is_cross else None,
        vdim=16 if is_cross else None,
        add_bias_kv="bias-kv" in extra,
        add_zero_attn="zero-attn" in extra,
        batch_first="batch-first" in told,
    ).eval()
    _enlarge(module)
    x = torch.randn(_BATCH, _QUERIES, _DIM)
    inputs = [x, x, x]
    if is_cross:
        inputs[1:] = torch.randn(_BATCH, keys, 20), torch.randn(_BATCH, keys, 16)
    if "unbatched" in told:
        inputs = [one[0] for one in inputs]
    elif "sequence-first" in told:
        inputs = [one.transpose(0, 1) for one in inputs]
    options = {
        "need_weights": "weights" in told,
        "average_attn_weights": "averaged" in told,
        **_masks(told, keys),
    }
    # Without weights PyTorch drops a causal mask for a flag, which then hides the extra keys.
    is_hidden = {"causal", "no-weights"} <= told and extra != "plain" and "padded" not in told
    return Case(name, module, tuple(inputs), options, own=None if is_hidden else needed)


def _masks(told: set[str], keys: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    blocked = torch.rand(_QUERIES, keys) < 0.3
    blocked[:, 0] = False
    later = torch.ones(_QUERIES, keys).triu(1).bool()
    if "bool-mask" in told:
        options["attn_mask"] = blocked
    elif "float-mask" in told:
        options["attn_mask"] = torch.randn(_QUERIES, keys)
    elif "causal" in told:
        options.update(attn_mask=later, is_causal=True)
    elif "mask-per-head" in told:
        options["attn_mask"] = torch.rand(_BATCH * _HEADS, _QUERIES, keys) < 0.3
        options["attn_mask"][:, :, 0] = False
    if told & {"padded", "float-padded"}:
        padding = torch.zeros(_BATCH, keys, dtype=torch.bool)
        padding[1, -2:] = True
        padding = padding[1] if "unbatched" in told else padding
        if "float-padded" in told:
            padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        options["key_padding_mask"] = padding
    return options


def needed(case: Case) -> list[Tensor]:
    """Return the weights of each head that each nn.MultiheadAttention of a model gives."""
    found: list[Tensor] = []
    forward = nn.MultiheadAttention.forward

    def asked(module: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
        wanted = dict(kwargs, need_weights=True, average_attn_weights=False)
        found.append(forward(module, *args, **wanted)[1].detach())
        return forward(module, *args, **kwargs)

    nn.MultiheadAttention.forward = asked  # type: ignore[method-assign, assignment]
    try:
        with slow_path():
            case.run()
    finally:
        nn.MultiheadAttention.forward = forward  # type: ignore[method-assign]
    return found


def _enlarge(model: nn.Module) -> None:
    """Draw weights so large that attention differs clearly from pair to pair."""
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))


def _transformers() -> dict[str, Any]:
    variants = product((False, True), ("post-norm", "pre-norm"), _MASKS[::3], _PADDING)
    return {
        "-".join(("TransformerEncoder", *rest, *(["batch-first"] if first else []))): partial(
            _encoder, first, rest
        )
        for first, *rest in variants
    } | {
        "-".join(("Transformer", *rest, *(["batch-first"] if first else []))): partial(
            _whole, first, rest
        )
        for first, *rest in product((False, True), ("post-norm", "pre-norm"), _MASKS[::3])
    }


def _encoder(batch_first: bool, told: list[str], name: str) -> Case:
    layer = nn.TransformerEncoderLayer(
        _DIM, _HEADS, 32, batch_first=batch_first, norm_first="pre-norm" in told
    )
    model = nn.TransformerEncoder(layer, 2).eval()
    _enlarge(model)
    x = torch.randn(_BATCH, _QUERIES, _DIM)
    options: dict[str, Any] = {}
    if "causal" in told:
        options = {"mask": nn.Transformer.generate_square_subsequent_mask(_QUERIES)}
        options["is_causal"] = True
    if "padded" in told:
        padding = torch.zeros(_BATCH, _QUERIES, dtype=torch.bool)
        padding[1, -2:] = True
        if "causal" in told:
            padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        options["src_key_padding_mask"] = padding
    return Case(name, model, (x if batch_first else x.transpose(0, 1),), options, own=needed)


def _whole(batch_first: bool, told: list[str], name: str) -> Case:
    model = nn.Transformer(
        _DIM, _HEADS, 2, 2, 32, batch_first=batch_first, norm_first="pre-norm" in told
    ).eval()
    _enlarge(model)
    inputs = [torch.randn(_BATCH, tokens, _DIM) for tokens in (_QUERIES + 1, _QUERIES)]
    if not batch_first:
        inputs = [one.transpose(0, 1) for one in inputs]
    options = {}
    if "causal" in told:
        options["tgt_mask"] = nn.Transformer.generate_square_subsequent_mask(_QUERIES)
    return Case(name, model, tuple(inputs), options, own=needed)
