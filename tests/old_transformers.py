"""What older transformers, down to the oldest that gattn admits, do otherwise."""

from contextlib import contextmanager

import pytest
import transformers
from packaging.version import Version


def needs(version, lack):
    """Mark a test that older transformers cannot pass, even without gattn."""
    here = Version(transformers.__version__)
    return pytest.mark.skipif(
        here < Version(version), reason=f"transformers before {version} {lack}"
    )


@contextmanager
def attention_by(model, name):
    """Let all parts of a model run an attention: `set_attn_implementation` may leave some out.

    Before transformers 5.20 these are parts whose configuration is of the model's own class, but
    another object: T5's encoder and decoder.
    """
    parts = [part.config for part in model.modules() if hasattr(part, "config")]
    chosen = [config._attn_implementation for config in parts]
    for config in parts:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, one in zip(parts, chosen, strict=True):
            config._attn_implementation = one
