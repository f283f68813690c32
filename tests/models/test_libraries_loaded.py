"""A model of one library loads no other, and another may be loaded while a context is open."""

import subprocess
import sys

ENCODER = """
import sys
import torch
import gattn

layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
encoder, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(1, 5, 8)
cut = gattn.Cut(layer=0, head=0, query=1, key=0)
"""


def printed(code):
    """What is printed by code that runs in a process of its own, after an encoder was made."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENCODER + code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_model_of_torch_loads_neither_transformers_nor_what_they_load():
    code = """
with torch.no_grad(), gattn.capturing(encoder) as run:
    encoder(x)
assert run.trace[1, 1].to_dense().shape == (5, 5)
with torch.no_grad(), gattn.edited(encoder, cut):
    encoder(x)
gattn.effect(lambda: encoder(x)[0, 0].sum(), [cut], model=encoder, progress=False)
heavy = {"transformers.modeling_utils", "scipy.optimize", "torch_geometric", "sklearn"}
print("loaded", *sorted(heavy & set(sys.modules)))
"""
    assert printed(code) == ["loaded"]


def test_a_library_may_be_loaded_while_a_context_is_open():
    code = """
with torch.no_grad(), gattn.edited(encoder, cut):
    edited = encoder(x)
    assert "transformers.modeling_utils" not in sys.modules
    model, tokenizer = gattn.load_model()
    inside = gattn.capture("the dog and the cat", model, tokenizer)
    assert torch.equal(encoder(x), edited)
from transformers import AttentionInterface, GenerationMixin

own = AttentionInterface.get_interface, GenerationMixin._sample
outside = gattn.capture("the dog and the cat", model, tokenizer)
assert (AttentionInterface.get_interface, GenerationMixin._sample) == own
assert own[0].__module__.startswith("transformers.") and not hasattr(own[0], "__wrapped__")
pairs = zip(inside.heads(), outside.heads(), strict=True)
print(all((one.to_dense() == other.to_dense()).all() for one, other in pairs))
"""
    assert printed(code) == ["True"]
