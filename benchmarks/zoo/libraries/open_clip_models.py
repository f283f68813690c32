"""open_clip: image and text towers, CoCa, and attentional pooling, small."""

from __future__ import annotations

import copy
from typing import Any

import torch

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized
from benchmarks.zoo.libraries.torch_modules import needed

_VISION: dict[str, Any] = {
    "image_size": 32,
    "layers": 2,
    "width": 32,
    "patch_size": 8,
    "head_width": 8,
}
_TEXT: dict[str, Any] = {
    "context_length": 9,
    "vocab_size": 50,
    "width": 32,
    "heads": 4,
    "layers": 2,
}
_TIMM = {"image_size": 224, "timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token"}
_POOLED = {"attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 6}
_COCA = {"vision": {**_POOLED, "output_tokens": True}}
_CHANGES: dict[str, dict[str, Any]] = {
    "clip": {},
    "clip-quick-gelu": {"quick_gelu": True},
    "clip-patch-dropout": {"vision": {"patch_dropout": 0.5}},
    "clip-average-pool": {"vision": {"pool_type": "avg", "final_ln_after_pool": True}},
    "clip-attentional-pool": {"vision": _POOLED},
    "clip-attentional-pool-cascaded": {"vision": {**_POOLED, "attentional_pool": "cascade"}},
    "clip-sinusoidal": {"vision": {"pos_embed_type": "sin_cos_2d", "no_ln_pre": True}},
    "clip-layer-scale": {"vision": {"ls_init_value": 0.5}, "text": {"ls_init_value": 0.5}},
    "clipa-no-causal-mask": {
        "text": {"no_causal_mask": True, "pool_type": "last", "pad_id": 0, "act_kwargs": {}}
    },
    "clip-qk-norm": {"vision": {"block_type": "custom", "qk_norm": True}},
    "clip-head-scale": {"vision": {"block_type": "custom", "scale_heads": True}},
    "clip-class-token-text": {"text": {"embed_cls": True, "pad_id": 0}, "custom_text": True},
    "clip-resnet": {
        "vision": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
    },
    "clip-timm": {"vision": _TIMM},
    "pe-core-timm": {
        "vision": {
            "image_size": 384,
            "timm_model_name": "vit_pe_core_tiny_patch16_384",
            "timm_pool": "map",
        },
        "text": {"no_causal_mask": True, "pool_type": "last", "proj_bias": True},
        "custom_text": True,
    },
    "coca": {
        **_COCA,
        "text": {"embed_cls": True, "output_tokens": True, "pad_id": 0},
        "multimodal": {},
    },
}


def names() -> list[str]:
    return list(_CHANGES)


def build(name: str) -> Case:
    import open_clip

    torch.manual_seed(0)
    told = copy.deepcopy(_CHANGES[name])
    vision = {**_VISION, **told.pop("vision", {})}
    if "timm_model_name" in vision:
        vision = {key: vision[key] for key in ("image_size", "timm_model_name", "timm_pool")}
    text = {**_TEXT, **told.pop("text", {})}
    options: dict[str, Any] = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
    is_coca = "multimodal" in told
    if is_coca:
        del told["multimodal"]
        options["multimodal_cfg"] = {**_TEXT, "attn_pooler_heads": 4}
    is_custom = told.pop("custom_text", False)
    kind: Any = open_clip.CustomTextCLIP if is_custom else open_clip.CLIP
    kind = open_clip.CoCa if is_coca else kind
    image = torch.randn(2, 3, vision["image_size"], vision["image_size"])
    ids = torch.randint(1, 49, (2, text["context_length"]))
    ids[0, 6], ids[1, 8] = 49, 49  # the end of each text has the largest id
    ids[0, 7:] = 0
    model = randomized(lambda: kind(**options, **told), image, ids)
    return Case(name, model, (image, ids), own=needed)
