"""litgpt: small models with each kind of attention, with and without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized

_SIZES: dict[str, Any] = {
    "block_size": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "vocab_size": 50,
    "padded_vocab_size": 50,
}
_LLAMA: dict[str, Any] = {
    "norm_class_name": "RMSNorm",
    "rotary_percentage": 1.0,
    "parallel_residual": False,
    "bias": False,
    "mlp_class_name": "LLaMAMLP",
    "intermediate_size": 48,
    "n_query_groups": 2,
}
_WINDOWS = {"sliding_window_size": 4, "sliding_window_indices": [1, 0]}
_GEMMA = {**_LLAMA, **_WINDOWS, "mlp_class_name": "GemmaMLP", "scale_embeddings": True}
_CONFIGS: dict[str, dict[str, Any]] = {
    "gpt-neox": {},
    "gpt": {"rotary_percentage": 0.0, "parallel_residual": False, "bias": True},
    "multi-query": {**_LLAMA, "n_query_groups": 1},
    "llama": _LLAMA,
    "llama3.1": {
        **_LLAMA,
        "rope_adjustments": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_seq_len": 8,
        },
    },
    "mistral": {**_LLAMA, "sliding_window_size": 4},
    "gemma2": {
        **_GEMMA,
        "attention_logit_softcapping": 5.0,
        "attention_scores_scalar": 16,
        "post_attention_norm": True,
        "post_mlp_norm": True,
    },
    "gemma3": {**_GEMMA, "norm_qk": True, "rope_local_base_freq": 100.0, "rope_indices": [0, 1]},
    "olmo2": {**_LLAMA, "norm_qk": True, "norm_qk_type": "olmo2", "norm_1": False, "norm_2": False}
    | {"post_attention_norm": True, "post_mlp_norm": True},
    "mixtral": {**_LLAMA, "mlp_class_name": "LLaMAMoE", "n_expert": 4, "n_expert_per_token": 2},
    "deepseek": {
        **_LLAMA,
        "n_query_groups": 4,
        "latent_attention": {
            "q_lora_rank": 16,
            "kv_lora_rank": 12,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    },
}
_CACHED = ("gpt-neox", "llama", "deepseek")
_ADAPTED = ("lora", "adapter", "adapter_v2")
_TOKENS = 8


def names() -> list[str]:
    """List the models, some with a cache, and a Llama adapted in each way."""
    cached = [f"{name}/cache" for name in _CACHED]
    return [*_CONFIGS, *cached, *(f"llama/{way}" for way in _ADAPTED)]


def build(name: str) -> Case:
    kind, _, told = name.partition("/")
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, _TOKENS))
    model = randomized(lambda: _made(_CONFIGS[kind], told), ids)
    if told not in ("cache", "steps"):
        return Case(name, model, (ids,))
    model.set_kv_cache(batch_size=2)  # type: ignore[operator]
    return Case(name, model, (ids,), call=_prompt if told == "cache" else _steps)


def _made(options: dict[str, Any], told: str) -> nn.Module:
    import importlib

    library = importlib.import_module(f"litgpt.{told if told in _ADAPTED else 'model'}")
    more: dict[str, Any] = {}
    if told == "lora":
        more = {"lora_r": 4, "lora_query": True, "lora_key": True, "lora_value": True}
    elif told.startswith("adapter"):
        more = {"adapter_prompt_length": 3, "adapter_start_layer": 0}
    config = library.Config(**{**_SIZES, **options, **more})
    made: nn.Module = library.GPT(config)
    return made


def _prompt(model: Any, ids: Tensor) -> Any:
    """Run a prompt through a cache that has room for more tokens."""
    return model(ids, torch.arange(_TOKENS))


def _steps(model: Any, ids: Tensor) -> Any:
    """Run a prompt, and then its last tokens one by one."""
    first = model(ids[:, :-2], torch.arange(_TOKENS - 2))
    rest = [model(ids[:, n : n + 1], torch.tensor([n])) for n in (_TOKENS - 2, _TOKENS - 1)]
    return [first, *rest]
