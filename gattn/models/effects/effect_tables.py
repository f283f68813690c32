"""Tables of what edits change in a model's answer, which draw themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from gattn.door import Pictured, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Effects(Pictured, pd.DataFrame):
    """Effects of edits, measured or estimated: a `pandas.DataFrame` that draws itself.

    ``attrs`` hold the ``metric`` and the text's ``tokens``. To draw some of the rows, select them:
    ``found[found.layer == 2].draw()``.
    """

    @property
    def _constructor(self) -> type[Effects]:
        return type(self)

    def draw(
        self,
        layout: str | None = None,
        *,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Axes:
        """Draw it on Axes; see `gattn.drawing.results.effects.draw_effects.draw_effects`."""
        return draw(self, layout, figsize=figsize, ax=ax, **options)
