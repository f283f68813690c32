"""vit-pytorch: the classifier of each of its files, small."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case, LeftOutError
from benchmarks.zoo.libraries.randomizing import randomized

_SIZES: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 16,
    "num_classes": 10,
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 48,
    "dim_head": 16,
    "cls_depth": 1,
    "channels": 3,
    "frames": 4,
    "image_patch_size": 16,
    "frame_patch_size": 2,
    "max_frames": 4,
    "spatial_depth": 2,
    "temporal_depth": 2,
    "seq_len": 64,
    "ndim": 2,
    "input_shape": (64, 64),
    "num_residual_streams": 2,
    "freq_patch_size": 8,
    "num_slots": 4,
}
_FOUR_STAGES = {"dim": (16, 24, 32, 40), "depth": (1, 1, 2, 1)}
_CHANGES: dict[str, dict[str, Any]] = {
    "ats_vit": {"max_tokens_per_depth": (12, 8)},
    "cct": {"img_size": 64, "embedding_dim": 32, "num_layers": 2, "num_heads": 2},
    "cct_3d": {
        "img_size": 64,
        "num_frames": 4,
        "embedding_dim": 32,
        "num_layers": 2,
        "num_heads": 2,
        "frame_kernel_size": 3,
        "positional_embedding": "learnable",
    },
    "cross_vit": {
        "sm_dim": 24,
        "lg_dim": 32,
        "sm_patch_size": 8,
        "lg_patch_size": 16,
        "depth": 2,
        "sm_enc_heads": 2,
        "lg_enc_heads": 2,
        "cross_attn_heads": 2,
        "lg_enc_depth": 2,
    },
    "crossformer": {
        **_FOUR_STAGES,
        "dim": (64, 96, 128, 160),
        "image_size": 64,
        "local_window_size": 2,
        "global_window_size": (4, 2, 2, 2),
    },
    "jet_vit": {"window_size": 2, "attn_layers": ["WA", "FA"]},
    "levit": {"dim": (32, 48, 64), "heads": (2, 3, 4), "mlp_mult": 2},
    "max_vit": {"dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4},
    "max_vit_with_registers": {"dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4},
    "mobile_vit": {
        "patch_size": (2, 2),
        "image_size": (128, 128),
        "dims": [24, 32, 40],
        "channels": [8, 16, 16, 16, 24, 24, 32, 32, 40, 40, 64],
    },
    "nest": {"patch_size": 4, "num_hierarchies": 2, "block_repeats": (1, 2)},
    "pit": {"image_size": 64, "patch_size": 8, "depth": (1, 1)},
    "regionvit": {**_FOUR_STAGES, "window_size": 7, "image_size": 224},
    "scalable_vit": {
        "heads": (1, 2, 2, 2),
        "depth": (1, 1, 1, 1),
        "reduction_factor": (4, 2, 1, 1),
        "window_size": (8, 4, None, None),
    },
    "sep_vit": {"heads": (1, 2), "depth": (1, 2), "image_size": 224},
    "t2t": {"image_size": 64},
    "twins_svt": {
        **{f"s{n}_depth": 1 for n in (1, 2, 3, 4)},
        **{f"s{n}_emb_dim": 16 * n for n in (1, 2, 3, 4)},
        "image_size": 224,
    },
    "vit_with_patch_merger": {"patch_merge_layer": 1, "patch_merge_num_tokens": 4},
    "cvt": {"s3_depth": 2, "s2_emb_dim": 48, "s3_emb_dim": 64, "s2_heads": 2, "s3_heads": 2},
    "look_vit": {"patch_size": 16, "highres_patch_size": 8, "cross_attn_heads": 2},
    "looped_vit": {"input_shape": None, "pre_loop_depth": 1, "num_looped_blocks": 1},
}
_INPUTS: dict[str, tuple[int, ...]] = {
    "cct_3d": (3, 4, 64, 64),
    "simple_flash_attn_vit_3d": (3, 4, 64, 64),
    "simple_vit_3d": (3, 4, 64, 64),
    "simple_vit_1d": (3, 64),
    "vit_1d": (3, 64),
    "vit_3d": (3, 4, 64, 64),
    "vivit": (3, 4, 64, 64),
    "vivit_with_moss": (3, 4, 64, 64),
}
_NOT_MODELS = ("accept_video_wrapper", "dino", "distill", "es_vit", "extractor", "lejepa", "mpp")
_WRAPPERS = (*_NOT_MODELS, "mae", "simmim", "recorder", "vat", "levjepa", "levjepa_nd", "vaat")
_LISTS = ("na_vit", "na_vit_nested_tensor", "na_vit_nested_tensor_3d")
_NOT_TOKENS = {
    "XCAttention": "channels",
    "LinearAttention": "keys, for linear attention",
    "AttentionResidual": "layers",
    "AttentionResidual.attn": "layers",
}


def names() -> list[str]:
    import vit_pytorch

    files = sorted(one.name for one in pkgutil.iter_modules(vit_pytorch.__path__))
    return [name for name in files if name not in _WRAPPERS]


def build(name: str) -> Case:
    module = importlib.import_module(f"vit_pytorch.{name}")
    if name == "efficient":
        raise LeftOutError("is a wrapper around a transformer of another library")
    kind = _classifier(module)
    options = {**_SIZES, **_CHANGES.get(name, {})}
    size = options["image_size"]
    size = size if isinstance(size, int) else size[0]
    accepted = inspect.signature(kind.__init__).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    chosen = {
        key: value
        for key, value in options.items()
        if key in accepted or (takes_any and key in _CHANGES.get(name, {}))
    }
    torch.manual_seed(0)
    inputs = torch.randn(2, *_INPUTS.get(name, (3, size, size)))
    args: tuple[Any, ...] = (_listed(name, inputs) if name in _LISTS else inputs,)
    return Case(name, randomized(lambda: kind(**chosen), *args), args, not_tokens=_NOT_TOKENS)


def _classifier(module: Any) -> type[nn.Module]:
    found = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and kind.__module__ == module.__name__
        and {"num_classes", "img_size", "image_size"} & _options(kind)
        and kind.__name__ not in ("Transformer", "TransformerClassifier", "ImageEmbedder", "SPT")
    ]
    if not found:
        raise LeftOutError("holds no classifier")
    return next((kind for kind in found if "num_classes" in _options(kind)), found[0])


def _options(kind: type[nn.Module]) -> set[str]:
    return set(inspect.signature(kind).parameters)


def _listed(name: str, images: Tensor) -> Any:
    """Return images of different sizes, as the models that take several resolutions want them."""
    if name == "na_vit":
        return [[images[0], images[1, :, :32]], [images[1]]]
    if name == "na_vit_nested_tensor_3d":
        return [torch.randn(3, 4, 64, 64), torch.randn(3, 4, 32, 64)]
    return [images[0], images[1, :, :32]]
