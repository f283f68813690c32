"""x-transformers: a small decoder, or encoder, with each of the library's options."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized

_VALUES: dict[str, Any] = {
    "attn_sparse_topk": 3,
    "attn_num_mem_kv": 2,
    "attn_max_attend_past": 3,
    "attn_kv_heads": 2,
    "attn_value_dim_head": 12,
    "attn_gate_values_rank": 4,
    "rotate_num_heads": 2,
    "alibi_num_heads": 2,
    "sandwich_coef": 1,
    "shift_tokens": 1,
    "num_residual_streams": 2,
    "rotary_interpolation_factor": 2.0,
    "scale_residual_constant": 0.5,
    "par_ratio": 4,
    "custom_layers": ("a", "f", "a", "a", "f"),
    "layers_execute_order": (0, 1, 0, 1, 2, 3),
}
_NEEDS: dict[str, dict[str, Any]] = {
    "alibi_num_heads": {"alibi_pos_bias": True},
    "rotate_num_heads": {"rotary_pos_emb": True},
    "attn_sparse_topk_straight_through": {"attn_sparse_topk": 3},
    "attn_qk_norm_dim_scale": {"attn_qk_norm": True},
    "attn_use_latent_q": {"attn_dim_latent_q": 16},
    "attn_use_latent_kv": {"attn_dim_latent_kv": 16},
    "attn_gate_values_headwise": {"attn_gate_values": True},
    "attn_output_gate_headwise": {"attn_output_gate": True},
    "attn_cope_soft_onehot_pos": {"attn_use_cope": True},
    "attn_cope_talking_heads": {"attn_use_cope": True},
    "attn_logit_softclamp_value": {"attn_softclamp_logits": True},
    "attn_orthog_projected_values_per_head": {"attn_orthog_projected_values": True},
    "dynamic_pos_bias_log_distance": {"dynamic_pos_bias": True},
    "dynamic_pos_bias_norm": {"dynamic_pos_bias": True},
    "learned_reinject_input_gate": {"reinject_input": True},
    "rotary_interpolation_factor": {"rotary_pos_emb": True},
    "use_adaptive_layernorm": {"dim_condition": 32},
    "use_adaptive_rmsnorm": {"dim_condition": 32},
    "use_adaptive_layerscale": {"dim_condition": 32, "use_adaptive_layernorm": True},
    "qkv_receive_diff_residuals": {"num_residual_streams": 2},
    "attn_data_dependent_alibi_per_row": {"attn_data_dependent_alibi": True},
    "scale_residual_constant": {"scale_residual": True},
}
_OF_ENCODERS = ("attn_data_dependent_alibi", "attn_use_rel_proj_pos_bias")
_ROLES = ("causal", "cross_attend", "only_cross", "verbose", "polar_bias_uniform_init")
_TWICE = ("attn_learned_value_residual_mix", "attn_qkv_receive_diff_residuals", "attn_flash")
"""Options that the layers set themselves."""
_WITH = ("plain", "padded", "flash", "flash-padded", "cross", "encoder-decoder", "vit")
_HEADS = 4
_NOT_TOKENS = {"DynamicLIMe.to_weights": "layers"}


def names() -> list[str]:
    """List an encoder and a decoder of each kind, and each option that is off by default."""
    from x_transformers import x_transformers as library

    found = [f"{side}/{told}" for side in ("encoder", "decoder") for told in _WITH[:4]]
    found += ["decoder/cross", "encoder-decoder", "vit", "vit/registers", "memory-tokens"]
    options = []
    for kind, prefix in ((library.AttentionLayers, ""), (library.Attention, "attn_")):
        for name, one in inspect.signature(kind).parameters.items():
            if one.default is False and name not in _ROLES and prefix + name not in _TWICE:
                options.append(prefix + name)
    return found + [f"option/{name}" for name in dict.fromkeys([*options, *_VALUES])]


def build(name: str) -> Case:
    import x_transformers as library

    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 8))
    side, _, told = name.partition("/")
    options: dict[str, Any] = {}
    if side == "option":
        options = {told: _VALUES.get(told, True), **_NEEDS.get(told, {})}
        side = "encoder" if told in _OF_ENCODERS else "decoder"
    if "flash" in told:
        options["attn_flash"] = True
    kwargs: dict[str, Any] = {}
    if "use_adaptive" in told:
        kwargs["condition"] = torch.randn(2, 32)
    if "padded" in told:
        kwargs["mask"] = torch.tensor([[True] * 8, [True] * 6 + [False] * 2])
    if side == "encoder-decoder":
        sizes = {"num_tokens": 50, "depth": 2, "heads": _HEADS, "max_seq_len": 16}
        both = {f"{one}_{key}": value for one in ("enc", "dec") for key, value in sizes.items()}
        model = library.XTransformer(dim=32, tie_token_emb=True, **both)
        args = (ids, torch.randint(0, 50, (2, 6)))
        return Case(name, model.eval(), args)
    if side == "vit":
        layers = _layers(library.Encoder)
        extra = {"num_register_tokens": 2} if told else {}
        image = torch.randn(2, 3, 32, 32)

        def make() -> nn.Module:
            return library.ViTransformerWrapper(
                image_size=32, patch_size=8, num_classes=10, attn_layers=layers, **extra
            )

        return Case(name, randomized(make, image), (image,))
    if told == "cross":
        options["cross_attend"] = True
        kwargs["context"] = torch.randn(2, 5, 32)
    wrapped = {"num_memory_tokens": 3} if side == "memory-tokens" else {}
    kind = library.Decoder if side == "decoder" else library.Encoder

    def made() -> nn.Module:
        return library.TransformerWrapper(
            num_tokens=50, max_seq_len=16, attn_layers=_layers(kind, **options), **wrapped
        )

    own = None if "attn_flash" in options else returned
    model = randomized(made, ids, **kwargs)
    return Case(name, model, (ids,), kwargs, own=own, not_tokens=_NOT_TOKENS)


def _layers(kind: Any, **options: Any) -> nn.Module:
    depth = {} if "custom_layers" in options else {"depth": 2}
    sizes = {"dim": 32, "heads": _HEADS, "attn_dim_head": 8, **depth}
    return kind(verbose=False, **sizes, **options)


def returned(case: Case) -> list[Tensor]:
    """Return the attention that the library returns if asked."""
    torch.manual_seed(0)
    with torch.no_grad():
        _, maps = case.model(*case.args, **case.kwargs, return_attn=True)
    return [one.detach() for one in maps]
