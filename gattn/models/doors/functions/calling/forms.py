"""The forms in which a softmax may hold rows of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Form(NamedTuple):
    """How to make (..., queries, keys) of a softmax, and the softmax of these again."""

    rows: Callable[[Tensor], Tensor]
    softmax: Callable[[Tensor], Tensor]
    is_turned: bool = False


FORMS = {
    "": Form(lambda x: x, lambda x: x),
    "one query": Form(lambda x: x.unsqueeze(-2), lambda x: x.squeeze(-2)),
    "turned": Form(lambda x: x.mT, lambda x: x.mT, is_turned=True),
}
"""The forms by their names: as it is, (..., keys) of one query, and (..., keys, queries)."""
