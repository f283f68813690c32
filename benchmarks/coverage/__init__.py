"""Which models gattn captures and edits, checked on small models with random weights.

    python -m benchmarks.coverage [--models NAME ...] [--json PATH] [--markdown docs/models.md]
    python -m benchmarks.coverage --library timm --markdown docs/models.md

A tiny model of each type of transformers runs on a padded batch, and is compared with its own eager
attention: what the module's eager function returned for each call or, if the attention is not
routed, the attentions that the model itself returns. The models of other libraries
(`libraries/`) are compared with PyTorch's softmax kernels and with what the library shows.
"""
