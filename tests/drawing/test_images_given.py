"""Images of any library, size and kind, and those that cannot be shown."""

import numpy as np
import pytest
import torch
from PIL import Image as Pil
from scenes import landscape

from gattn.drawing.over_image.images import Image, read_image
from gattn.errors import FileError, ShapeError
from gattn.heads.geometry import Grid

SCENE = landscape()
BYTES = (255 * SCENE).round().astype(np.uint8)


@pytest.mark.parametrize(
    "given",
    [
        SCENE,
        SCENE.astype(np.float32),
        BYTES,
        BYTES.astype(np.int64),
        SCENE[None],
        torch.tensor(SCENE).permute(2, 0, 1),
        torch.tensor(SCENE).permute(2, 0, 1)[None].half(),
        torch.tensor(SCENE),
        torch.tensor(BYTES).permute(2, 0, 1),
        np.moveaxis(SCENE, -1, 0),
        np.concatenate([SCENE, np.ones((32, 48, 1))], axis=-1),
        Pil.fromarray(BYTES),
        Pil.fromarray(BYTES).convert("RGBA"),
        SCENE.tolist(),
    ],
    ids=lambda given: f"{type(given).__name__} {np.shape(given)}",
)
def test_images_of_any_library_are_the_same(given):
    read = read_image(given)
    np.testing.assert_allclose(read.pixels, SCENE, atol=1 / 255)
    assert read.said == ""


def test_grey_images_have_three_equal_channels():
    grey = SCENE.mean(-1)
    for given in (grey, grey[..., None], torch.tensor(grey), torch.tensor(grey)[None]):
        np.testing.assert_allclose(read_image(given).pixels, np.repeat(grey[..., None], 3, -1))
    pil = Pil.fromarray(BYTES).convert("L")
    np.testing.assert_allclose(read_image(pil).pixels[..., 0], np.asarray(pil) / 255)
    np.testing.assert_allclose(read_image(pil).grey, np.asarray(pil) / 255)


def test_palettes_are_read_as_their_colours():
    pil = Pil.fromarray(BYTES).quantize(16)
    np.testing.assert_allclose(read_image(pil).pixels, np.asarray(pil.convert("RGB")) / 255)


def test_see_through_pixels_are_on_white():
    see_through = np.concatenate([SCENE, np.zeros((32, 48, 1))], axis=-1)
    read = read_image(see_through)
    np.testing.assert_array_equal(read.pixels, np.ones((32, 48, 3)))
    assert "see-through pixels are shown on white" in read.said


def test_normalized_numbers_are_shown_from_least_to_largest():
    normalized = (torch.tensor(SCENE).permute(2, 0, 1) - 0.5) / 0.25
    read = read_image(normalized)
    span = SCENE.max() - SCENE.min()
    np.testing.assert_allclose(read.pixels, (SCENE - SCENE.min()) / span, atol=1e-6)
    assert read.said.endswith("are shown as black to white")
    assert "from −1.2 to 2" in read.said


def test_files_are_opened(tmp_path):
    path = tmp_path / "scene.png"
    Pil.fromarray(BYTES).save(path)
    np.testing.assert_array_equal(read_image(path).pixels, BYTES / 255)
    np.testing.assert_array_equal(read_image(str(path)).pixels, BYTES / 255)


def test_files_that_are_no_images_are_refused(tmp_path):
    path = tmp_path / "scene.png"
    with pytest.raises(FileError, match=r"scene.png cannot be read as an image"):
        read_image(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(FileError, match="cannot be read as an image"):
        read_image(path)


def with_nan():
    broken = SCENE.copy()
    broken[3, 5, 1] = np.nan
    return broken


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (with_nan(), "nan.* in row 3, column 5"),
        (np.full((2, 2), np.inf), "must be finite"),
        (np.zeros((2, 3, 5)), r"1, 3 or 4 channels, not \(2, 3, 5\)|with 1, 3 or 4"),
        (np.zeros((2, 32, 48, 3)), r"not one of shape \(2, 32, 48, 3\)"),
        (np.zeros((0, 4, 3)), "not one of shape"),
        (np.zeros(5), "not one of shape"),
        (np.zeros((4, 4), dtype=bool), "not bool"),
        (np.zeros((4, 4), dtype=complex), "not complex128"),
        (None, "image must be a PIL image"),
        ({"pixels": 3}, "image must be a PIL image"),
        ([[1, 2], [3]], "not list"),
        (np.dstack([SCENE * 3, SCENE[..., 0]]), "alpha channel"),
        (torch.zeros(3, 4, 4, device="meta"), "device meta"),
    ],
)
def test_what_is_no_image_is_refused(given, said):
    with pytest.raises(ShapeError, match=said):
        read_image(given)


def test_an_image_of_another_shape_must_say_how_it_was_read():
    grid = Grid(2, 2, [0, 1, 2, 3], image_size=(20, 20))
    image = read_image(SCENE)
    with pytest.raises(ShapeError, match=r"32 × 48 pixels, but the model read .* 20 × 20"):
        image.fitted(grid, None)
    assert image.fitted(grid, "stretch") is image
    np.testing.assert_array_equal(image.fitted(grid, "crop").pixels, SCENE[:, 8:40])
    tall = read_image(SCENE.transpose(1, 0, 2))
    expected = SCENE.transpose(1, 0, 2)[8:40]
    np.testing.assert_array_equal(tall.fitted(grid, "crop").pixels, expected)
    with pytest.raises(ShapeError, match="the grid has 2 × 2 patches"):
        image.fitted(Grid(2, 2, [0, 1, 2, 3]), None)


@pytest.mark.parametrize("size", [(16, 24), (64, 96), (320, 480), (33, 49), (32, 48)])
def test_images_of_the_same_shape_in_other_sizes_fit(size):
    image = read_image(np.zeros((*size, 3)))
    assert image.fitted(Grid(2, 3, range(6), image_size=(32, 48)), None) is image
    assert image.fitted(Grid(2, 3, range(6)), None) is image


def test_large_images_lose_pixels_but_not_their_shape():
    image = read_image(np.zeros((300, 900, 3))).no_larger(100)
    assert image.size == (34, 100)


@pytest.mark.parametrize(("size", "most"), [((257, 100), 100), ((31, 64), 7), ((5, 9), 9)])
def test_a_large_image_is_averaged_over_areas_not_thinned(size, most):
    pixels = np.random.default_rng(0).random((*size, 3))
    small = Image(pixels).no_larger(most).pixels
    rows, columns = small.shape[:2]
    assert max(rows, columns) <= most
    fine = pixels.repeat(rows, axis=0).repeat(columns, axis=1)
    areas = fine.reshape(rows, size[0], columns, size[1], 3)
    np.testing.assert_allclose(small, areas.mean((1, 3)), atol=1e-12)
