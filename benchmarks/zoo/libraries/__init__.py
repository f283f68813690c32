"""Models of other libraries than transformers: random weights, small where that is possible.

Each file has `names()`, the models that it tries, and `build(name)`, which makes a `Case`.
"""

FILES = {
    "nn": "torch_modules",
    "torch-geometric": "graph_convs",
    "timm": "timm_models",
    "torchvision": "torchvision_models",
    "vit-pytorch": "vit_pytorch_models",
    "x-transformers": "x_transformers_models",
    "diffusers": "diffusers_models",
    "open_clip": "open_clip_models",
    "litgpt": "sequences.litgpt_models",
    "transformer-lens": "sequences.transformer_lens_models",
    "sentence-transformers": "sequences.sentence_transformers_models",
    "peft": "sequences.peft_models",
    "esm": "sequences.esm_models",
    "chronos": "sequences.chronos_models",
    "tabpfn": "sequences.tabpfn_models",
}
"""The file of each library."""

PACKAGES = {
    "nn": (),
    "torch-geometric": ("torch-geometric",),
    "timm": ("timm",),
    "torchvision": ("torchvision",),
    "vit-pytorch": ("vit-pytorch",),
    "x-transformers": ("x-transformers",),
    "diffusers": ("diffusers",),
    "open_clip": ("open_clip_torch",),
    "litgpt": ("litgpt",),
    "transformer-lens": ("transformer-lens", "transformers"),
    "sentence-transformers": ("sentence-transformers", "transformers"),
    "peft": ("peft", "transformers"),
    "esm": ("fair-esm",),
    "chronos": ("chronos-forecasting", "transformers"),
    "tabpfn": ("tabpfn",),
}
"""What is installed for it."""

NOTES = {
    "nn": "384 variants of `nn.MultiheadAttention` (and a few more), compared with its own "
    "`need_weights=True`, and the transformers made of it.",
    "torch-geometric": "Convolutions, compared with `return_attention_weights=True` where they "
    "have it; each edge cut is compared with the convolution on the graph without that edge.",
    "timm": "One model of each architecture: of each file, the smallest of those made of the same "
    "classes of attention, with fewer layers of the same classes where it can be made so. Compared "
    "also with what enters the `attn_drop` modules, unfused.",
    "torchvision": "The smallest model of each family with attention, and some of the others.",
    "vit-pytorch": "The classifier of each of its files.",
    "x-transformers": "An encoder or a decoder with each of the library's options.",
    "diffusers": "UNets, diffusion transformers and autoencoders; of some, also with the other "
    "attention processors. Where the library has an eager processor, also compared with the scores "
    "that it computes.",
    "open_clip": "CLIP, SigLIP and CoCa with the options of their towers, compared also with "
    "`need_weights=True`.",
    "litgpt": "A model with each kind of attention, some with a cache, and a Llama with LoRA and "
    "adapters.",
    "transformer-lens": "The library's own models, and transformers models in its bridge, compared "
    "also with `hook_pattern` (but not where a bridge is made without its mode of compatibility).",
    "peft": "A Llama with each kind of adapter, and LoRA and learned prompts in other transformers "
    "models, compared also with the attention that they return themselves, from their eager code.",
    "esm": "ESM-1, ESM-1b, ESM-2 and the MSA Transformer, compared also with "
    "`need_head_weights=True`.",
    "sentence-transformers": "Transformers models of several kinds in its modules, compared also "
    "with the attention that they return themselves, from their eager code.",
    "chronos": "The language models, Bolt and Chronos-2.",
    "tabpfn": "Each of its architectures, as a classifier and as a regressor.",
}
"""What is tried."""
