"""In a comparison each head is named in each of its three pictures, or its row and column are."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from meeting import drawn_texts, problems
from paper import FONT, other_run, trace
from test_draw_heads import said


@pytest.mark.parametrize("size", [(6.75, 3), (6.75, 2.2), (3.3, 3.3), (3.3, 5.0)])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 8), (5, 1)])
def test_each_picture_of_each_head_is_named(shape, size):
    with mpl.rc_context(FONT):
        figure = trace(*shape).draw(other=other_run(*shape), figsize=size)
        assert not problems(figure)
        texts = [box.text for box in drawn_texts(figure)]
    plt.close(figure)
    if "layer 0" in texts:
        return
    assert "heads are named layer.head" in said(figure)
    for layer in range(shape[0]):
        for head in range(shape[1]):
            name = rf"{layer}\.{head}(:.*)?"
            # 0.5 is a number of the scales, too
            assert sum(bool(re.fullmatch(name, text, re.DOTALL)) for text in texts) >= 3, name
