"""Colours are measured: their lightness in CIELAB, and how far apart a deuteranope sees them."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from gattn.drawing.canvas.colours import colour_map

STEPS = np.linspace(0, 1, 21)
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
"""On linear RGB, at full severity: Machado, Oliveira and Fernandes (2009)."""
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colours):
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def lab(light):
    part = light @ TO_XYZ.T / WHITE
    root = np.where(part > 216 / 24389, np.cbrt(part), (24389 / 27 * part + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def colours(*, is_signed=False, is_area=False):
    return linear(np.array(colour_map(None, is_signed=is_signed, is_area=is_area)(STEPS))[:, :3])


@pytest.fixture(params=["default", "dark_background"])
def background(request):
    with plt.style.context(request.param):
        yield lab(linear(np.array(mpl.colors.to_rgb(mpl.rcParams["axes.facecolor"]))))


def test_lightness_is_measured_right():
    assert lab(linear(np.array([1.0, 1.0, 1.0]))).round(2).tolist() == [100, 0, 0]
    assert lab(linear(np.array([1.0, 0.0, 0.0]))).round(1).tolist() == [53.2, 80.1, 67.2]


@pytest.mark.parametrize("is_area", [False, True])
def test_lightness_changes_evenly_with_attention_away_from_the_background(background, is_area):
    distance = np.abs(lab(colours(is_area=is_area))[:, 0] - background[0])
    steps = np.diff(distance)
    assert steps.min() > 0.4 * steps.mean()
    assert distance[-1] > 80


@pytest.mark.parametrize(("is_area", "least"), [(False, 15), (True, 8)])
def test_the_weakest_attention_shows_on_the_background(background, is_area, least):
    assert np.linalg.norm(lab(colours(is_area=is_area))[0] - background) > least


def test_signs_are_told_apart_without_red_or_green(background):
    seen = lab(np.clip(colours(is_signed=True) @ DEUTERANOPIA.T, 0, 1))
    pairs = seen[:9], seen[:-10:-1]
    assert (np.linalg.norm(pairs[0] - pairs[1], axis=1) > 15).all()


def test_neighbouring_colours_differ_for_a_deuteranope(background):
    for is_signed in (False, True):
        seen = lab(np.clip(colours(is_signed=is_signed) @ DEUTERANOPIA.T, 0, 1))
        assert np.linalg.norm(np.diff(seen, axis=0), axis=1).min() > 1.5


def test_both_signs_of_one_strength_are_as_light(background):
    lightness = lab(colours(is_signed=True))[:, 0]
    assert np.abs(lightness - lightness[::-1]).max() < 8
    assert (np.diff(np.abs(lightness - background[0])[10:]) > 0).all()
