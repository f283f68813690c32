"""Which model types of transformers gattn captures and edits, checked on tiny models.

    python -m benchmarks.coverage [--models NAME ...] [--json PATH] [--markdown docs/models.md]

A tiny random model of each type runs on a padded batch, and is compared with its own eager
attention: what the module's eager function returned for each call or, if the attention is not
routed, the attentions that the model itself returns.
"""
