"""In a comparison each head is named in each of its three pictures, or its row and column are."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
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


def test_rows_without_room_for_names_are_named_by_their_first_head():
    """In one column, each of many heads is found by counting from the name of its row."""
    with mpl.rc_context(FONT):
        figure = trace(12, 12).draw(other=other_run(12, 12), figsize=(3.3, 4.0))
        assert not problems(figure)
        texts = drawn_texts(figure)
    frames = [c for c in figure.axes[0].collections if c.get_gid() == "gattn-frames"]
    plt.close(figure)
    assert "rows are named by their first head, layer.head" in said(figure)
    expected = []
    for block in frames:
        corners = np.array([path.vertices[0] for path in block.get_paths()])
        assert len(corners) == 144
        across = 144 // len(np.unique(corners[:, 1].round(4)))
        expected += [f"{place // 12}.{place % 12}" for place in range(0, 144, across)]
        left = 72 * corners[:, 0].min()
    beside = [box for box in texts if box.corners[:, 0].max() < left]
    ordered = sorted(beside, key=lambda box: -box.corners[:, 1].mean())
    assert [box.text for box in ordered] == expected
