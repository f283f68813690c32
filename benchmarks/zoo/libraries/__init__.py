"""Models of other libraries than transformers: random weights, small where that is possible.

Each file has `names()`, the models that it tries, and `build(name)`, which makes a `Case`.
"""

FILES = {
    "nn": "torch_modules",
    "torch-geometric": "graph_convs",
    "timm": "timm_models",
    "torchvision": "torchvision_models",
    "diffusers": "diffusers_models",
    "open_clip": "open_clip_models",
    "vit-pytorch": "vit_pytorch_models",
    "x-transformers": "x_transformers_models",
    "litgpt": "litgpt_models",
    "others": "other_models",
}
"""The file of each library."""

PACKAGES = {
    "nn": (),
    "torch-geometric": ("torch-geometric",),
    "timm": ("timm",),
    "torchvision": ("torchvision",),
    "diffusers": ("diffusers",),
    "open_clip": ("open_clip_torch",),
    "vit-pytorch": ("vit-pytorch",),
    "x-transformers": ("x-transformers",),
    "litgpt": ("litgpt",),
    "others": ("sentence-transformers", "transformer-lens", "chronos-forecasting", "fair-esm"),
}
"""What is installed for it."""

NOTES = {
    "nn": "384 variants of `nn.MultiheadAttention` (and a few more), compared with its own "
    "`need_weights=True`, and the transformers made of it.",
    "torch-geometric": "Convolutions, compared with `return_attention_weights=True` where they "
    "have it; each edge cut is compared with the convolution on the graph without that edge.",
    "timm": "One model of each architecture: of each file, the smallest of those made of the same "
    "classes of attention. Compared also with what enters the `attn_drop` modules, unfused.",
    "torchvision": "The models with attention, and one of each other family.",
    "diffusers": "Small transformers and U-Nets of each kind.",
    "open_clip": "One model of each kind of tower.",
    "vit-pytorch": "The classifier of each of its files.",
    "x-transformers": "An encoder or a decoder with each of the library's options.",
    "litgpt": "One small model of each family.",
    "others": "Small models of other libraries.",
}
"""What is tried."""
