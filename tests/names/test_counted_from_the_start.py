"""Layers and heads are counted from 0 alone; who counts from the end is told which is the last."""

import pytest

import gattn
from gattn.errors import SelectionError

TEXT = "The dog chased the cat"
LAST = "count from 0, not from the end, and the last of the model is 3"
UNKNOWN = "counts from 0, not from the end, so it cannot be -1: name the last by its number"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda: gattn.capture(TEXT, layers=-1), f"^No layer -1: layers {LAST}"),
        (lambda: gattn.capture(TEXT, layers=[0, 4]), r"^No layer 4; the model has layers 0 \.\. 3"),
        (lambda: gattn.capture(TEXT, heads=-1), "No head -1: heads count from 0.*layer 0 is 3"),
        (lambda: gattn.why(TEXT, layer=-1, head=0, query=-1), f"^layer {UNKNOWN}"),
        (lambda: gattn.why(TEXT, layer=1, head=-1, query=-1), f"^head {UNKNOWN}"),
        (lambda: gattn.why(TEXT, layer=4, head=0, query=-1), "^No layer 4; the model has layers"),
        (lambda: gattn.Cut(layer=-1), f"^layer {UNKNOWN}"),
        (lambda: gattn.Scale(0.5, layer=0, head=-1), f"^head {UNKNOWN}"),
    ],
)
def test_layers_and_heads_are_not_counted_from_the_end(asked, message):
    model, _ = gattn.load_model()
    with pytest.raises(SelectionError, match=message), gattn.edited(model, asked()):
        pass
