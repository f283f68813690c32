"""A model whose attention is dense algebra in plain torch: the oracle of captures and edits."""

from contextlib import contextmanager

import torch
from old_transformers import attention_by
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "dense-oracle"


class Dense:
    """Runs a model with its attention written out densely, and changed on the way.

    ``before(call, scores)`` changes the scores (batch, heads, queries, keys), which are -inf where
    no edge is; ``after(call, attention)`` the attention. A call has `layer`, counted over all
    calls, `place`, the stack and the layer in it, `query`, `key` with as many heads, `value`, and
    `scores`, as they are shared out.
    """

    def __init__(self):
        self.calls = self.layer = 0
        self.places = {}
        self.before = self.after = None
        self.query = self.key = self.value = self.scores = self.sink = self.place = None

    def attend(self, module, query, key, value, mask, scaling=None, s_aux=None, **options):
        self.layer, self.calls = self.calls, self.calls + 1
        self.place, self.sink = self.places.get(id(module)), s_aux
        groups = query.shape[1] // key.shape[1]
        self.key, self.value = (x.repeat_interleave(groups, 1) for x in (key, value))
        self.query = query
        scores = query @ self.key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if options.get("softcap") is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if options.get("position_bias") is not None:
            scores = scores + options["position_bias"]
        if mask is not None:
            mask = mask[..., : key.shape[2]]
            scores = (scores + mask).masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf)
        self.scores = scores if self.before is None else self.before(self, scores)
        attention = self.share(self.scores)
        attention = attention if self.after is None else self.after(self, attention)
        return (attention @ self.value).transpose(1, 2).contiguous(), attention

    def share(self, scores):
        """Softmax with this call's sink; zero where there is no key."""
        if self.sink is None:
            return torch.softmax(scores, -1).nan_to_num(0.0)
        sink = self.sink.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]

    def run(self, model, inputs, before=None, after=None):
        """Give the model's output, or the logits where it has some."""
        self.calls, self.before, self.after = 0, before, after
        self.places = {id(module): place for module, place in _placed(model)}
        with _registered(self.attend), attention_by(model, NAME), torch.no_grad():
            return model(**inputs)[0]


@contextmanager
def _registered(attend):
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    try:
        yield
    finally:
        AttentionInterface._global_mapping.pop(NAME)
        AttentionMaskInterface._global_mapping.pop(NAME)


def _placed(model):
    """Say of each attention module which stack and layer it is."""
    for name, module in model.named_modules():
        parts = name.split(".")
        numbers = [int(part) for part in parts if part.isdigit()]
        if numbers:
            is_cross = "EncDecAttention" in parts or "encoder_attn" in parts
            stack = "cross" if is_cross else "encoder" if "encoder" in parts else "decoder"
            yield module, (stack, numbers[0])
