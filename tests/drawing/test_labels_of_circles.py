"""Around a circle, the last label does not meet the first."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import gattn


@pytest.mark.parametrize("count", [100, 101, 121, 141])
def test_labels_around_a_circle_stay_apart(count):
    head = gattn.AttentionTrace.from_arrays(np.eye(count)[None, None])[0, 0]
    with plt.rc_context({"font.size": 7}):
        ax = head.draw("circle", figsize=(3.3, 2.4))
        ax.figure.canvas.draw()
    places = {
        text.get_text(): np.array(text.get_position())
        for text in ax.texts
        if text.get_text() and text.get_rotation_mode() == "anchor"
    }
    assert len(places) > 8
    assert "0" in {name.split()[0] for name in places}
    angles = np.sort([np.arctan2(y, x) for x, y in places.values()])
    apart = np.diff([*angles, angles[0] + 2 * np.pi])
    assert apart.min() > 0.6 * np.median(apart)
