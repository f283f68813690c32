"""TransformerLens: its own models, and those of transformers in its bridge, small."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case

_OWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "attention-only": {"attn_only": True, "d_mlp": None},
    "bidirectional": {"attention_dir": "bidirectional"},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": 8},
    "grouped-query": {"n_key_value_heads": 2},
    "softcap": {"attn_scores_soft_cap": 5.0},
    "rms": {"normalization_type": "RMS", "gated_mlp": True},
}
_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 16}
_BRIDGED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", _GPT2),
    "gpt_neox": ("GPTNeoX", _SMALL),
    "llama": ("Llama", _GROUPED),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": 4}),
    "qwen2": ("Qwen2", _GROUPED),
    "gemma2": ("Gemma2", {**_GROUPED, "head_dim": 8, "sliding_window": 4}),
    "phi": ("Phi", _SMALL),
    "gptj": ("GPTJ", {**_GPT2, "rotary_dim": 4}),
    "opt": ("OPT", {**_SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
}


def names() -> list[str]:
    """List the library's own models, and bridges, also in their mode of compatibility."""
    bridges = [f"{name}/{way}" for name in _BRIDGED for way in ("bridge", "compatible")]
    return [*_OWN, "plain/padded", *bridges]


def build(name: str) -> Case:
    kind, _, way = name.partition("/")
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 8))
    model = _own(_OWN[kind]) if kind in _OWN else _bridged(*_BRIDGED[kind])
    if way == "compatible":
        model.enable_compatibility_mode(disable_warnings=True)
    options: dict[str, Any] = {}
    if way == "padded":
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, -3:] = 0
        options["attention_mask"] = mask
    return Case(name, model.eval(), (ids,), options, own=None if way == "bridge" else patterns)


def _own(options: dict[str, Any]) -> Any:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot

    sizes: dict[str, Any] = {
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "d_head": 8,
        "d_mlp": 48,
        "n_ctx": 16,
        "d_vocab": 50,
        "act_fn": "gelu",
    }
    return _enlarged(boot(TransformerBridgeConfig(**{**sizes, **options})))


def _bridged(kind: str, options: dict[str, Any]) -> Any:
    import transformers
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    config = getattr(transformers, f"{kind}Config")(**options)
    auto = transformers.AutoModelForCausalLM
    model = _enlarged(auto.from_config(config, attn_implementation="eager").eval())
    return build_bridge_from_module(model, architecture=type(model).__name__, hf_config=config)


def _enlarged(model: nn.Module) -> nn.Module:
    """Draw weights so large that attention differs clearly from pair to pair."""
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def patterns(case: Case) -> list[Tensor]:
    """Return what `hook_pattern` is given in each layer."""
    with torch.no_grad():
        _, cache = case.model.run_with_cache(*case.args, **case.kwargs)  # type: ignore[operator]
    return [cache[name].detach() for name in cache if name.endswith("hook_pattern")]
