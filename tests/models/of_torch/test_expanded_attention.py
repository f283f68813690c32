"""Attention that is expanded keeps its queries in the dimension whose numbers they are."""

import pytest
import torch
from torch import Tensor

from gattn.models.doors.functions.softmaxes.changes.carrying import carried
from gattn.models.doors.functions.softmaxes.changes.mixing import ONE
from gattn.models.doors.functions.softmaxes.follow.following import Followed

QUERIES, KEYS = 6, 5


@pytest.mark.parametrize(
    ("before", "placed", "sizes", "expected"),
    [
        ((1, QUERIES, KEYS), (1, None), (QUERIES, QUERIES, KEYS), (1, None)),
        ((QUERIES, KEYS), (0, None), (QUERIES, QUERIES, KEYS), (1, None)),
        ((QUERIES, 1, QUERIES, KEYS), (2, 0), (QUERIES, QUERIES, QUERIES, KEYS), (2, 0)),
        ((1, 2, QUERIES, KEYS), (2, 0), (QUERIES, 2, QUERIES, KEYS), (2, None)),
        ((2, 1, 1, KEYS), (2, 0), (2, 3, 1, KEYS), (ONE, 0)),
        ((2, 1, 1, KEYS), (2, 0), (2, 3, 4, KEYS), (None, 0)),
    ],
)
def test_queries_and_texts_are_counted_from_the_last_dimension(before, placed, sizes, expected):
    given = torch.zeros(before)
    followed = Followed(None, given, len(before) - 1, altered="mul", placed=placed)
    result = given.expand(sizes)
    for func, args in ((Tensor.expand, (given, *sizes)), (Tensor.expand_as, (given, result))):
        found = carried(func, args, {}, followed, result)
        assert found.placed == expected
        assert found.key == len(sizes) - 1
