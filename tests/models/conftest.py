"""Whole models with their attention in plain algebra: the oracle of edits."""

import pytest
import torch
from dense_models import Dense

from gattn.models.doors.orders import _orders
from gattn.models.doors.steps import _steps


@pytest.fixture(scope="session")
def dense():
    return Dense()


def chosen(where, count):
    """List what an edit's layer, head, query or key means among so many."""
    if where is None:
        return list(range(count))
    if isinstance(where, slice):
        return list(range(count))[where]
    return [n for n in ([where] if isinstance(where, int) else where) if n < count]


@pytest.fixture(scope="session")
def densely(dense):
    """Run a model with cuts and scales written out: dicts with `factor` (None: cut first)."""

    def place(spec, shape):
        names = zip(("head", "query", "key"), shape[1:], strict=True)
        heads, queries, keys = (chosen(spec.get(name), count) for name, count in names)
        inside = torch.zeros(shape[1:], dtype=torch.bool)
        inside[torch.tensor(heads)[:, None, None], torch.tensor(queries)[:, None], keys] = True
        return inside

    def run(model, inputs, *specs):
        def here(call):
            return [
                s for s in specs if s.get("layer") is None or call.layer in chosen(s["layer"], 99)
            ]

        def before(call, scores):
            for spec in here(call):
                if spec.get("factor") is None:
                    scores = scores.masked_fill(place(spec, scores.shape), -torch.inf)
            return scores

        def after(call, attention):
            for spec in here(call):
                if spec.get("factor") is not None:
                    inside = place(spec, attention.shape)
                    attention = torch.where(inside, attention * spec["factor"], attention)
            return attention

        return dense.run(model, inputs, before, after)

    return run


@pytest.fixture(autouse=True)
def nothing_watches_afterwards():
    """No mode of gattn's outlives a test."""
    before = torch.overrides._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    yield
    after = torch.overrides._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    assert after == before


@pytest.fixture(autouse=True)
def _nothing_is_followed_on():
    yield
    left = [type(one).__name__ for known in (_steps, _orders) for one in known]
    _steps.known.clear()
    _orders.known.clear()
    assert not left
