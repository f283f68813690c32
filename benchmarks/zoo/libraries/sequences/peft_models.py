"""peft: small transformers models with each kind of adapter."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo import randomize

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 31,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 31,
    "decoder_start_token_id": 0,
}
_MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", "CAUSAL_LM", {**_SIZES, "n_inner": 48}),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        "CAUSAL_LM",
        {**_SIZES, "num_key_value_heads": 2},
    ),
    "bert": ("BertForSequenceClassification", "BertConfig", "SEQ_CLS", _SIZES),
    "t5": ("T5ForConditionalGeneration", "T5Config", "SEQ_2_SEQ_LM", _T5),
}
_PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 16}),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
}
_LINEAR: dict[str, Any] = {"target_modules": "all-linear"}
_LORA: dict[str, Any] = {"r": 4, "init_lora_weights": False, **_LINEAR}
_ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", _LORA),
    "dora": ("LoraConfig", {**_LORA, "use_dora": True}),
    "adalora": (
        "AdaLoraConfig",
        {"target_modules": ["q_proj", "v_proj"], "total_step": 9, "init_lora_weights": False},
    ),
    "ia3": ("IA3Config", {"target_modules": ["k_proj", "v_proj"], "feedforward_modules": []}),
    "loha": ("LoHaConfig", {"r": 4, "init_weights": False, **_LINEAR}),
    "lokr": ("LoKrConfig", {"r": 4, "init_weights": False, **_LINEAR}),
    "oft": ("OFTConfig", {"oft_block_size": 8, "init_weights": False, **_LINEAR}),
    "boft": ("BOFTConfig", {"boft_block_size": 4, "init_weights": False, **_LINEAR}),
    "hra": ("HRAConfig", {"r": 4, "init_weights": False, **_LINEAR}),
    "vera": ("VeraConfig", {"r": 4, "target_modules": ["q_proj", "o_proj"]}),
    "fourierft": ("FourierFTConfig", {"n_frequency": 9, "init_weights": False, **_LINEAR}),
    "vblora": ("VBLoRAConfig", {"vector_length": 8, "num_vectors": 9, **_LINEAR}),
    "lntuning": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "adaption-prompt": ("AdaptionPromptConfig", {"adapter_len": 3, "adapter_layers": 2}),
    "trainable-tokens": ("TrainableTokensConfig", {"token_indices": [3, 4]}),
}
_WAYS = ("lora/merged", "lora/several", "lora/batch")


def names() -> list[str]:
    """List prompts in models of several kinds, and a Llama with each adapter."""
    prompted = [f"{kind}/{prompt}" for kind in _MODELS for prompt in _PROMPTS]
    adapted = [f"{kind}/lora" for kind in _MODELS if kind != "llama"]
    return [*prompted, *adapted, *(f"llama/{way}" for way in (*_ADAPTERS, *_WAYS))]


def build(name: str) -> Case:
    import peft
    import transformers

    kind, adapter, *way = name.split("/")
    made, config, task, sizes = _MODELS[kind]
    torch.manual_seed(0)
    inner = getattr(transformers, made)(getattr(transformers, config)(**sizes))
    randomize(inner)
    of, options = (_PROMPTS | _ADAPTERS)[adapter]
    asked = getattr(peft, of)(task_type=task, **options)
    model: Any = peft.get_peft_model(inner, asked)
    given: dict[str, Any] = {}
    if way == ["several"]:
        model.add_adapter("second", asked)
        model.base_model.set_adapter(["default", "second"])
    elif way == ["batch"]:
        model.add_adapter("second", asked)
        given["adapter_names"] = ["default", "second"]
    _move(model)
    if way == ["merged"]:
        model.merge_adapter()
    ids = torch.randint(3, 31, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    given |= {"input_ids": ids, "attention_mask": mask}
    if kind == "t5":
        given["decoder_input_ids"] = torch.randint(3, 31, (2, 5))
    return Case(name, model.eval(), kwargs=given, own=returned)


def _move(model: nn.Module) -> None:
    """Give adapters weights that change what the model computes: most begin at nothing."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += torch.randn_like(weight) / 10


def returned(case: Case) -> list[Tensor]:
    """Return the attention that the transformers model inside returns, from its eager code."""
    inner: Any = copy.deepcopy(case.model)
    inner.get_base_model().set_attn_implementation("eager")
    with torch.no_grad():
        found = inner(**case.kwargs, output_attentions=True)
    kinds = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    shown = [one for kind in kinds for one in getattr(found, kind, None) or ()]
    mask = case.kwargs["attention_mask"]
    alone = mask.shape[1:] * 2  # no prompt, whose tokens are attended to from padding, too
    is_real = mask[:, None, :, None]
    return [one * is_real if one.shape[-2:] == alone else one for one in shown]
