"""TabPFN: each of its architectures, small, as a classifier and as a regressor."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized

_SIZES: dict[str, Any] = {
    "emsize": 24,
    "nlayers": 2,
    "nhead": 2,
    "num_thinking_rows": 3,
    "embed_dim": 16,
    "dist_embed_num_blocks": 1,
    "dist_embed_num_heads": 2,
    "dist_embed_num_inducing_points": 4,
    "feat_agg_num_blocks": 1,
    "feat_agg_num_heads": 2,
    "feat_agg_num_cls_tokens": 2,
    "icl_num_heads": 2,
    "decoder_head_dim": 8,
    "decoder_num_heads": 2,
    "feature_group_size": 2,
}
_VERSIONS = ("v2", "v2_5", "v2_6", "v3", "v3_5")
_CLASSES = 3


def names() -> list[str]:
    return [f"{version}/{task}" for version in _VERSIONS for task in ("classes", "numbers")]


def build(name: str) -> Case:
    version, _, task = name.partition("/")
    library = importlib.import_module(f"tabpfn.architectures.tabpfn_{version}")
    kind = next(
        one
        for one in vars(library).values()
        if inspect.isclass(one) and one.__module__ == library.__name__ and "Config" in one.__name__
    )
    is_classifier = task == "classes"
    sizes = {"max_num_classes": _CLASSES if is_classifier else 0, "num_buckets": 20}
    if version == "v3_5":
        sizes["max_num_classes"] = _CLASSES
    known = inspect.signature(kind).parameters
    sizes |= {key: value for key, value in _SIZES.items() if key in known}
    if "is_classification" in known:
        sizes["is_classification"] = is_classifier
    torch.manual_seed(0)
    rows, labels = torch.randn(9, 1, 4), torch.randint(0, _CLASSES, (6, 1)).float()
    options: dict[str, Any] = {}
    if version == "v3_5":
        options["task_type"] = "multiclass" if is_classifier else "regression"

    def make() -> nn.Module:
        made: nn.Module = library.get_architecture(kind(**sizes))
        return made

    return Case(name, randomized(make, rows, labels, **options), (rows, labels), options)
