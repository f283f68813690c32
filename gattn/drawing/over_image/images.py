"""Reads images of any library as pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import refuse_hidden
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.matrices.cells import overlaps
from gattn.errors import FileError, ShapeError
from gattn.files.whole_files import reason_of, shown_path
from gattn.heads.geometry import Grid

Fit: TypeAlias = Literal["stretch", "crop"]
_ALIKE = 0.01
"""How far, relatively, the shape of an image may be from that of the picture that was read."""
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Image:
    """An image as it is shown.

    Parameters
    ----------
    pixels : array (height, width, 3)
        Red, green and blue, from 0 to 1.
    said : str
        How it differs from what was given.
    """

    pixels: NDArray[np.float64]
    said: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """The height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def grey(self) -> NDArray[np.float64]:
        """How light each pixel is, from 0 to 1."""
        grey: NDArray[np.float64] = self.pixels @ np.array([0.299, 0.587, 0.114])
        return grey

    def no_larger(self, pixels: int) -> Image:
        """Average pixels over equal areas until no side is longer than so many."""
        step = max(1, -(-max(self.size) // max(pixels, 1)))
        found = self.pixels
        for count in self.size if step > 1 else ():
            parts = -(-count // step)
            shares = overlaps(np.arange(count + 1.0), parts).T * (parts / count)
            flat = shares @ found.reshape(count, -1)
            found = np.moveaxis(flat.reshape(parts, *found.shape[1:]), 0, 1)
        return replace(self, pixels=found)

    def fitted(self, grid: Grid, fit: Fit | None) -> Image:
        """Take the part of the image that the grid is of.

        Raises
        ------
        ShapeError
            If the image has another shape than the picture that the model read, and `fit` does not
            say how one became the other.
        """
        if fit not in (None, "stretch", "crop"):
            raise ShapeError(f"fit is 'stretch' or 'crop', not {fit!r:.80}.")
        height, width = self.size
        rows, columns = grid.image_size or (grid.rows, grid.columns)
        ratio = (width / height) / (columns / rows)
        if fit == "stretch" or abs(ratio - 1) <= _ALIKE or _is_rounded(self.size, (rows, columns)):
            return self
        if fit is None:
            wanted = (
                f"the model read a picture of {rows} × {columns} pixels"
                if grid.image_size
                else f"the grid has {rows} × {columns} patches"
            )
            raise ShapeError(
                f"The image has {height} × {width} pixels, but {wanted}: pass the image as the "
                "model read it, or fit='stretch' if it was resized to that shape, or fit='crop' if "
                "its middle was cut out."
            )
        if ratio > 1:
            keep = max(1, round(width / ratio))
            first = (width - keep) // 2
            return Image(self.pixels[:, first : first + keep], self.said)
        keep = max(1, round(height * ratio))
        first = (height - keep) // 2
        return Image(self.pixels[first : first + keep], self.said)


def _is_rounded(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether an image differs from a resized picture by the rounding of its sides alone."""
    scale = max(have / want for have, want in zip(size, wanted, strict=True))
    return min(size) > 1 and all(
        abs(have - want * scale) <= 1 for have, want in zip(size, wanted, strict=True)
    )


def read_image(image: Any) -> Image:
    """Read an image.

    Parameters
    ----------
    image : PIL image, array (height, width, 3), Tensor (3, height, width), or path
        Grey images and those with an alpha channel are read, too; a batch of one is that one.
        Numbers from 0 to 255 if whole, from 0 to 1 if not; other numbers, such as those that were
        normalized for a model, are shown from their least as black to their largest as white.

    Raises
    ------
    ShapeError
        If it has another shape, no pixels, or a number is not finite.
    FileError
        If there is no such file, or it is no image.
    """
    if isinstance(image, str | PathLike):
        image = _opened(Path(fspath(image)))
    if hasattr(image, "getbands") and hasattr(image, "convert"):
        image = _of_pil(image)
    refuse_hidden("image", image, ShapeError)
    kind, is_tensor = type(image).__name__, isinstance(image, Tensor)
    try:
        if isinstance(image, Tensor):
            image = image.detach().cpu()
            image = (image.float() if image.is_floating_point() else image).numpy()
        values = np.asarray(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{_wanted()}, not {kind}.") from error
    if not values.ndim:
        raise ShapeError(f"{_wanted()}, not {kind}.")
    if values.dtype.kind not in "iuf":
        raise ShapeError(f"{_wanted()}, not {values.dtype} {values.shape}.")
    return _shown(_channels_last(values, first=is_tensor))


def _wanted() -> str:
    return (
        "image must be a PIL image, an array (height, width, 3), a tensor (3, height, width) or a "
        "path"
    )


def _opened(path: Path) -> Any:
    import PIL.Image
    import PIL.ImageOps

    try:
        with PIL.Image.open(path) as file:
            return PIL.ImageOps.exif_transpose(file).copy()
    except PIL.UnidentifiedImageError as error:
        raise _unreadable(path, "it is of no format that PIL knows") from error
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise _unreadable(path, reason_of(error)) from error


def _unreadable(path: Path, reason: str) -> FileError:
    return FileError(
        f"{shown_path(path)} cannot be read as an image: {reason}. Pass the path of an image, such "
        "as a PNG or JPEG file, or its pixels as an array."
    )


def _of_pil(image: Any) -> NDArray[Any]:
    is_see_through = "A" in image.getbands() or "transparency" in image.info
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return np.asarray(image)
    return np.asarray(image.convert("RGBA" if is_see_through else "RGB"))


def _channels_last(values: NDArray[Any], *, first: bool) -> NDArray[Any]:
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or not values.size:
        raise ShapeError(f"{_wanted()}, not one of shape {values.shape}.")
    if values.shape[-1] not in _CHANNELS or (first and values.shape[0] in _CHANNELS):
        values = np.moveaxis(values, 0, -1)
    if values.shape[-1] not in _CHANNELS:
        raise ShapeError(f"{_wanted()}, with 1, 3 or 4 channels, not {values.shape}.")
    return values


def _shown(values: NDArray[Any]) -> Image:
    """Scale numbers to 0 .. 1, put see-through pixels on white, and make grey three channels."""
    said = []
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        row, column, _ = np.argwhere(~np.isfinite(numbers))[0].tolist()
        raise ShapeError(
            f"The image has {numbers[row, column].tolist()} in row {row}, column {column}: every "
            "pixel must be finite."
        )
    alpha = numbers[..., 3:]
    numbers, least, most = numbers[..., :3], float(numbers.min()), float(numbers.max())
    if values.dtype.kind in "iu" and least >= 0 and most <= 255:
        numbers, alpha = numbers / 255, alpha / 255
    elif least < 0 or most > 1:
        if alpha.size:
            raise ShapeError(
                f"An image with an alpha channel has numbers from 0 to 1, or whole ones to 255, "
                f"not from {least:g} to {most:g}."
            )
        numbers = (numbers - least) / (most - least or 1.0)
        ends = in_digits(least), in_digits(most)
        said.append(f"the image's numbers from {ends[0]} to {ends[1]} are shown as black to white")
    if alpha.size and (alpha < 1).any():
        numbers = numbers * alpha + (1 - alpha)
        said.append("see-through pixels are shown on white")
    return Image(np.broadcast_to(numbers, (*numbers.shape[:2], 3)), "; ".join(said))
