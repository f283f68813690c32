import numpy as np
import pytest

from gattn.drawing.canvas import curves

ANGLES = np.linspace(0, 2 * np.pi, 7)[:-1]
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
START, END = (places.reshape(-1, 2) for places in (CIRCLE[[0, 0, 0]], CIRCLE[[1, 2, 3]]))


@pytest.mark.parametrize("draw", [curves.chords, curves.bows])
def test_an_edge_and_its_reverse_stay_apart(draw):
    for there, back in zip(draw(START, END), draw(END, START), strict=True):
        np.testing.assert_allclose(there.vertices[0], back.vertices[-1])
        assert np.linalg.norm(there.vertices[1] - back.vertices[1]) > 0.15


@pytest.mark.parametrize(
    ("draw", "arrivals"),
    [(curves.chords, curves.chord_arrivals), (curves.bows, curves.bow_arrivals)],
)
def test_arrowheads_point_the_way_the_curve_arrives(draw, arrivals):
    for path, direction in zip(draw(START, END), arrivals(START, END), strict=True):
        np.testing.assert_allclose(path.vertices[-1] - path.vertices[1], direction)


def test_half_ellipses_run_up_to_the_right_and_down_to_the_left():
    left, right = np.array([[0.0, 0.0]]), np.array([[4.0, 0.0]])
    (there,), (back,) = curves.half_ellipses(left, right), curves.half_ellipses(right, left)
    np.testing.assert_allclose(there.vertices[3], [2, 2])
    np.testing.assert_allclose(back.vertices[3], [2, -2])
