"""Tiny configurations: each number in a model's default configuration is reduced, by its name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

VOCABULARY = 99
WIDTH = 32
IMAGE = 64

# The first pattern that matches the whole name counts; smaller sizes stay.
_SIZES: list[tuple[str, int]] = [
    (r"(.*_)?type_vocab_size", 2),
    (r"codebook_size", 64),
    (r"(.*_)?vocab(_size)?(_per_layer_input)?|num_embeds", VOCABULARY),
    (r"(.*_)?num_(key_value|kv)_heads|n_head_kv|num_key_value_attention_heads", 2),
    (r"linear_num_(key|value)_heads|index_n_heads", 2),
    (r"mamba_(n|num)_heads", 8),
    (r"(.*_)?num_(attention_|self_attention_|cross_attention_)?heads|n_heads?", 4),
    (r"(.*_)?attention_heads|attn_heads|resampler_heads", 4),
    (r"(.*_)?(num|n)_(.*_)?layers|n_layers?|(.*_)?layers|(.*_)?depth|num_blocks", 2),
    (r"(.*_)?(head_dim|head_size|d_head)|d_kv|kv_channels|dim_head", 8),
    (r"(.*_)?rotary_(dim|ndims)", 4),
    (r"(.*_)?rank", 16),
    (r"(mamba_)?(d_state|state_size|ssm_state_size)", 8),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k", 2),
    (r"n_group|topk_group", 1),
    (r"sliding_window(_size)?|local_attention|attention_(window|chunk)(_size)?|index_topk", 4),
    (r"image_size|input_size|pretrain_image_size|crop_size", IMAGE),
    (r"(.*_)?patch_size", 16),
    (r"num_conv_pos_embedding_groups", 2),
    (r"upsample_groups", 1),
    (r"hidden_size_global", WIDTH),
    (r"(num|n)_filters", 4),
    (r"(.*_)?num_mel_bins|feature_size|n_mel_bins|num_conv_pos_embeddings", 16),
    (r"num_queries|image_seq_length|mm_tokens_per_image|.*_soft_tokens_per_image", 16),
    (r"max_(source|target)_positions|(.*_)?max_(2d_)?position_embeddings|n_positions|n_ctx", 64),
    (r"(.*_)?(intermediate|ffn|inner|mlp)_(size|dim)|d_ff|d_inner|n_inner", 2 * WIDTH),
]
_LARGE = re.compile(
    r"(.*_)?(size|dims?|dimension|channels?|width|units|features?|latents?|inplanes|embd|model)"
)
_DEPTHS = re.compile(r"depths|n(um)?_layers|stage_num_blocks")
_WIDTHS = re.compile(r"(?!patch_|.*kernel_).*(sizes|dims?|channels)")
_PLACES = re.compile(r".*(indexes|indices|hook_ids|extract_layers)")
_TOKEN = re.compile(r"(.*_)?(token|pad|eos|bos|start|end)_(id|index)")
# Fields that configurations leave open although their models need them.
_OPEN = {
    "head_dim": 8,
    "moe_topk": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}


def tiny(
    config: PreTrainedConfig,
    changes: Mapping[str, Any] | None = None,
    tokens: dict[str, int] | None = None,
) -> PreTrainedConfig:
    """Build a small version of a default configuration; `changes` sets single fields."""
    changes = dict(changes or {})
    tokens = {} if tokens is None else tokens  # the same number for the same name, in all parts
    names = {field.name for field in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        try:
            default = getattr(config, field.name, None)
        except RuntimeError:  # a field that differs between layers has no single value
            default = field.default
        if isinstance(default, PreTrainedConfig):
            if "model_type" not in changes.get(field.name, {}):
                values[field.name] = tiny(default, changes.pop(field.name, None), tokens)
        elif _TOKEN.fullmatch(field.name) and isinstance(default, int):
            number = tokens.setdefault(field.name, VOCABULARY - 1 - len(tokens))
            values[field.name] = default if default < 10 else number
        elif field.default is not None:
            values[field.name] = _small(field.name, default)
        elif field.name in _OPEN:
            values[field.name] = _OPEN[field.name]
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        values["num_key_value_heads"] = 4
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    if kinds and "layer_types" in names:
        values["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        values["num_hidden_layers"] = len(values["layer_types"])
    if "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ()):
        values["rope_parameters"] = _three_axes(getattr(config, "rope_parameters", None) or {})
    return type(config)(**values | changes)


def _three_axes(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Divide the rotated half of a head of 8 among time, height and width."""
    if any(isinstance(value, Mapping) for value in rope.values()):
        return {kind: _three_axes(value) for kind, value in rope.items()}
    pairs = int(4 * rope.get("partial_rotary_factor", 1))
    sections = {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
    return {"rope_type": "default", "rope_theta": 10_000.0, **rope, **sections}


def _small(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value):
        return type(value)(_small_list(name, value))
    if type(value) is not int:
        return value
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return min(value, WIDTH) if _LARGE.fullmatch(name) else value


def _small_list(name: str, values: Any) -> list[int]:
    if _DEPTHS.fullmatch(name):
        return [min(value, 2) for value in values]
    if _PLACES.fullmatch(name):
        return [place % 2 for place in range(len(values))]
    if name in ("image_size", "patch_size") and min(values) > 4:
        return [_small(name, value) for value in values]
    if min(values) == 0:
        return list(values)
    base = 2 if "heads" in name else 16 if _WIDTHS.fullmatch(name) else 0
    return [max(1, value * base // min(values)) for value in values] if base else list(values)
