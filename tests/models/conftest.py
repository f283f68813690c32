"""Dense attention in plain algebra, which a whole model can run with: the oracle of edits."""

import pytest
import torch
from old_transformers import attention_by
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "dense-oracle"


class Dense:
    """Runs a model with its attention written out densely, and changed on the way.

    ``before(call, scores)`` changes the scores (batch, heads, queries, keys), which are -inf where
    no edge is; ``after(call, attention)`` the attention. A call has `layer`, counted over all
    calls, `query`, `key` with as many heads, and `value`.
    """

    def __init__(self):
        self.calls = 0
        self.before = self.after = None
        self.query = self.key = self.value = None
        self.layer = 0

    def attend(self, module, query, key, value, attention_mask, scaling=None, **options):
        self.layer, self.calls = self.calls, self.calls + 1
        groups = query.shape[1] // key.shape[1]
        self.key, self.value = (x.repeat_interleave(groups, 1) for x in (key, value))
        self.query = query
        scores = query @ self.key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if options.get("softcap") is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if options.get("position_bias") is not None:
            scores = scores + options["position_bias"]
        if attention_mask is not None:
            mask = attention_mask[..., : key.shape[2]]
            scores = (scores + mask).masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf)
        scores = scores if self.before is None else self.before(self, scores)
        sink = options.get("s_aux")
        if sink is not None:
            column = sink.reshape(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
            scores = torch.cat([scores, column.to(scores.dtype)], -1)
        attention = torch.softmax(scores, -1).nan_to_num(0.0)
        attention = attention if sink is None else attention[..., :-1]
        attention = attention if self.after is None else self.after(self, attention)
        return (attention @ self.value).transpose(1, 2).contiguous(), attention

    def run(self, model, inputs, before=None, after=None):
        self.calls, self.before, self.after = 0, before, after
        with attention_by(model, NAME), torch.no_grad():
            return model(**inputs)[0]


@pytest.fixture(scope="session")
def dense():
    oracle = Dense()
    AttentionInterface.register(NAME, oracle.attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    yield oracle
    AttentionInterface._global_mapping.pop(NAME)
    AttentionMaskInterface._global_mapping.pop(NAME)


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
