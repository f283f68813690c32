"""Where tokens lie on a page, and the image under them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.over_image.images import Fit, read_image
from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry, Grid, Layout
from gattn.heads.head import AttentionGraph

_LONGEST = 384
"""The most pixels along a side of the image."""


def places_of(geometry: Geometry | None) -> dict[str, Any] | None:
    """Describe where tokens lie: by column and row on a grid, or by x and y; None if in time.

    ``at`` has the place of each token, None if it lies nowhere. A grid has the ``size`` of the
    picture, in patches, and the ``ratio`` of a patch's height to its width.
    """
    if isinstance(geometry, Grid):
        down, across = geometry.covered
        tall, wide = geometry.rows / down, geometry.columns / across
        height, width = geometry.image_size or (tall, wide)
        row, column = geometry.coordinates().values()
        return {
            "kind": "grid",
            "at": _listed(column, row),
            "size": [wide, tall],
            "ratio": height / tall / (width / wide),
        }
    if isinstance(geometry, Layout):
        return {"kind": "layout", "at": _listed(*geometry.coordinates().values())}
    return None


def _listed(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[list[float] | None]:
    places = np.stack([x, y], axis=1)
    pairs = zip(places.tolist(), np.isnan(x).tolist(), strict=True)
    return [None if is_nowhere else pair for pair, is_nowhere in pairs]


def image_bytes(
    image: Any, heads: Iterable[AttentionGraph], fit: Fit | None
) -> tuple[bytes, dict[str, int]]:
    """Write an image in grey, one byte per pixel, and how many columns and rows it has.

    Raises
    ------
    SelectionError
        If no head has tokens on a grid.
    """
    grids = [
        geometry
        for head in heads
        for geometry in (head.geometry, head.query_geometry)
        if isinstance(geometry, Grid)
    ]
    if not grids:
        raise SelectionError(
            "image= is shown under tokens that lie on a grid: say where they lie, as in "
            "trace.on_grid(14, 14).to_html(path, image=image)."
        )
    read = read_image(image)
    shown = read.fitted(grids[0], fit)
    for grid in grids[1:]:
        read.fitted(grid, fit)
    grey = np.rint(255 * shown.no_larger(_LONGEST).grey).astype(np.uint8)
    rows, columns = grey.shape
    return grey.tobytes(), {"rows": rows, "columns": columns}
