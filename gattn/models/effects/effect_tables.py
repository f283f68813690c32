"""Tables of what edits change in a model's answer, which draw themselves."""

from __future__ import annotations

import pandas as pd

from gattn.door import DrawnByKind, Pictured


class Effects(Pictured, pd.DataFrame):
    """Effects of edits, measured or estimated: a `pandas.DataFrame` that draws itself.

    ``attrs`` hold the ``metric`` and the text's ``tokens``. To draw some of the rows, select them:
    ``found[found.layer == 2].draw()``.
    """

    @property
    def _constructor(self) -> type[Effects]:
        return type(self)

    draw = DrawnByKind()
