"""Softmaxes of the scores of attention beside the one that meets values: edited, or warned of."""

from __future__ import annotations

import gc
import warnings
from weakref import ref

import pytest
import torch
from hand_written import EDITS, ROOT, Layer, Model, check, made
from torch import nn
from torch.nn import functional

from gattn import Ablate, Cut, edited
from gattn.errors import EditError

SAME = {
    "softmax": lambda s: s.softmax(-1),
    "by a name": lambda s: functional.softmax(s, dim=3),
    "special": lambda s: torch.special.softmax(s, -1),
    "module": nn.Softmax(-1),
    "of detached scores": lambda s: s.detach().softmax(-1),
    "out": lambda s: torch.softmax(s.detach(), -1, out=torch.empty_like(s)),
}
THEN = {
    "itself": lambda a: a,
    "detached": lambda a: a.detach().clone(),
    "mean over heads": lambda a: a.mean(1),
    "one number": lambda a: torch.tensor(a.max().item()).double(),
}
OTHERS = {
    "temperature": (lambda s: (s / 2).softmax(-1), "another softmax"),
    "copy": (lambda s: s.clone().softmax(-1), "another softmax"),
    "other type": (lambda s: s.softmax(-1, dtype=torch.float32), "another softmax"),
    "one head": (lambda s: s[:, 2].softmax(-1), "another softmax"),
    "mean of scores": (lambda s: s.mean(1).softmax(-1), "another softmax"),
    "over queries": (lambda s: s.softmax(-2), "another softmax"),
    "softmin": (lambda s: functional.softmin(-s, -1), "another softmax"),
    "written out": (lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "another softmax"),
    "log_softmax": (lambda s: s.log_softmax(-1), "log_softmax"),
    "number of a log_softmax": (lambda s: s.log_softmax(-1).max().item(), "log_softmax"),
    "list of a log_softmax": (lambda s: s.log_softmax(-1).tolist(), "log_softmax"),
    "logits": (lambda s: torch.distributions.Categorical(logits=s).logits, "log_softmax"),
    "logsumexp": (lambda s: s.logsumexp(-1), "logsumexp"),
    "loss": (
        lambda s: functional.cross_entropy(
            s.flatten(0, 2), torch.zeros(s[..., 0].numel(), dtype=int)
        ),
        "cross_entropy",
    ),
}
SAYS = r"the model computes {} of the scores of {} \(\w+\)\. Edits do not reach that"


def after(second, kept):
    def way(q, k, v):
        scores = q @ k.mT / ROOT
        attention = scores.softmax(-1)
        kept.append(second(scores))
        return attention @ v

    return way


def before(second, kept):
    def way(q, k, v):
        scores = q @ k.mT / ROOT
        kept.append(second(scores))
        return scores.softmax(-1) @ v

    return way


def last(second, kept):
    def way(q, k, v):
        scores = q @ k.mT / ROOT
        found = scores.softmax(-1) @ v
        kept.append(second(scores))
        return found

    return way


def of_no_scores(second, kept):
    def way(q, k, v):
        found = functional.scaled_dot_product_attention(q, k, v)
        kept.append(second(q @ k.mT / ROOT))
        return found

    return way


def anew(second, kept):
    def way(q, k, v):
        kept.append(second(q @ k.mT / ROOT))
        return (q @ k.mT / ROOT).softmax(-1) @ v

    return way


def by_logarithms(second, kept):
    def way(q, k, v):
        scores = q @ k.mT / ROOT
        found = scores.log_softmax(-1).exp() @ v
        kept.append(second(scores))
        return found

    return way


TWICE = {
    **{f"{name} after": (after, second, THEN["itself"]) for name, second in SAME.items()},
    **{f"{name} before": (before, SAME["softmax"], then) for name, then in THEN.items()},
    **{f"{name} last": (last, SAME["module"], then) for name, then in THEN.items()},
}


@pytest.mark.parametrize(("order", "second", "then"), TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_softmax_that_is_taken_twice_is_edited_twice(order, second, then, with_gradients):
    kept = []
    model, x = made(order(lambda s: then(second(s)), kept))
    for edit, change in EDITS.values():
        with torch.set_grad_enabled(with_gradients), warnings.catch_warnings():
            warnings.simplefilter("error")
            with edited(model, edit):
                model(x)
                found = model(x)
        attention, wanted = model.dense(x, change)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
        for one, own in zip(kept[-2:], attention, strict=True):
            torch.testing.assert_close(one.detach(), then(own).detach(), rtol=0, atol=1e-12)


BESIDE = {
    **{f"{name} after": (after, *other) for name, other in OTHERS.items()},
    **{
        f"{name} {order.__name__}": (order, *OTHERS[name])
        for name in ("temperature", "written out", "log_softmax", "logsumexp")
        for order in (before, last, of_no_scores, anew, by_logarithms)
    },
    "softmax anew": (anew, SAME["softmax"], "another softmax"),
}


@pytest.mark.parametrize(("order", "second", "what"), BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_what_else_is_made_of_scores_is_as_it_was_and_warned_of(
    order, second, what, with_gradients
):
    kept = []
    model, x = made(order(second, kept))
    edit, change = EDITS["cut"]
    says = SAYS.format(f".*{what}.*", r"blocks\.1")
    with torch.set_grad_enabled(with_gradients):
        model(x)
        plain = kept[-1]
        with edited(model, edit), pytest.warns(UserWarning, match=says) as found:
            now = model(x)
    assert len(found) == 1
    torch.testing.assert_close(now, model.dense(x, change)[1], rtol=0, atol=1e-11)
    one, other = (torch.as_tensor(y).detach() for y in (kept[-1], plain))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def twice(q, k, v):
    scores = q @ k.mT / ROOT
    return (scores.softmax(-1) @ v + scores.softmax(-1) @ v) / 2


def logarithms(q, k, v):
    return (q @ k.mT / ROOT).log_softmax(-1).exp() @ v


def shifted(q, k, v):
    scores = q @ k.mT / ROOT
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def gating(q, k, v):
    gates = (q.mean(-1).mT @ torch.ones(4, 6, dtype=q.dtype)).softmax(-1)  # of as many experts
    return (q @ k.mT / ROOT).softmax(-1) @ v * gates.sum(-1)[:, None, :, None]


@pytest.mark.parametrize("way", [logarithms, shifted, gating])
def test_nothing_is_said_of_what_only_leads_to_the_attention(way):
    check(way)


def test_softmaxes_that_both_meet_values_are_edited_as_two():
    model, x = made(twice)
    model.blocks[0].way = model.blocks[1].way = twice
    cuts = [Cut(stack=name, layer=1, head=2, query=4, key=3) for name in ("blocks", "blocks 2")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, *cuts):
            found = model(x)
    torch.testing.assert_close(found, model.dense(x, EDITS["cut"][1])[1], rtol=0, atol=1e-11)


def test_nothing_is_said_of_layers_that_are_not_edited_nor_of_outputs():
    kept = []
    model, x = made(after(OTHERS["temperature"][0], kept))
    model.blocks[1].way = lambda q, k, v: (q @ k.mT / ROOT).softmax(-1) @ v
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, EDITS["cut"][0]):
            model(x)
        with edited(model, Ablate("zero", layer=0, head=2, what="outputs")):
            model(x)
    with edited(model, Cut(layer=0, query=4, key=3)), pytest.warns(UserWarning, match="another"):
        model(x)


class Scoring(Layer):
    """Gives its scores, too."""

    def forward(self, x):
        q, k, v = self.parts(x)
        scores = q @ k.mT / ROOT
        found = scores.softmax(-1) @ v
        return self.out(found.transpose(1, 2).flatten(2)), scores


class Showing(Model):
    """Returns the softmaxes of its layers' scores, for pictures."""

    def forward(self, x):
        shown = []
        for block in self.blocks:
            found, scores = block(x)
            x = x + found
            shown.append(scores.softmax(-1))
        return x, shown


def test_softmaxes_that_another_module_takes_are_warned_of_by_the_layer():
    model, x = Showing(None), made(None)[1]
    model.blocks = nn.ModuleList(Scoring(None) for _ in range(2))
    model.double().eval()
    for layer in range(2):
        says = SAYS.format("another softmax", rf"blocks\.{layer}")
        cut = Cut(layer=layer, query=4, key=3)
        with edited(model, cut), pytest.warns(UserWarning, match=says) as found:
            model(x)
        assert len(found) == 1
    says = pytest.warns(UserWarning, match=r"blocks\.0 \(Scoring\), and of 1 more")
    with edited(model, Cut(query=4, key=3)), says:
        model(x)


class Masked(Layer):
    """Takes its softmax twice, and then loses it to tokens with a large number."""

    def forward(self, x):
        q, k, v = self.parts(x)
        scores = q @ k.mT / ROOT
        self.kept = scores.softmax(-1)
        attention = scores.softmax(-1).masked_fill((x.abs().amax(-1) > 20)[:, None, None], 0.0)
        return self.out((attention @ v).transpose(1, 2).flatten(2))


@torch.no_grad()
def test_a_softmax_that_is_taken_twice_is_warned_of_where_edits_wait_for_the_values():
    model, x = made(None)
    model.blocks = nn.ModuleList(Masked(None) for _ in range(2)).double().eval()
    large = x.clone()
    large[:, 5] *= 40
    model(x)  # From now on it keeps something.
    with edited(model, EDITS["cut"][0]):
        model(x)
        assert bool((model.blocks[1].kept[:, 2, 4, 3] == 0).all())
        with pytest.raises(EditError, match="changes its attention"):
            model(large)
        with pytest.warns(UserWarning, match=SAYS.format("another softmax", r"blocks\.1")):
            model(large)
    assert bool((model.blocks[1].kept[:, 2, 4, 3] != 0).all())


@pytest.mark.parametrize("breaks", [False, True])
@torch.no_grad()
def test_nothing_waits_for_a_second_softmax_that_does_not_come(breaks):
    seen, stops = [], []

    def way(q, k, v):
        scores = q @ k.mT / ROOT
        seen.append(ref(scores))
        found = scores.softmax(-1) @ v
        if stops and breaks:
            raise RuntimeError("stopped")
        if not stops:
            scores.softmax(-1)
        return found

    model, x = made(way)
    with edited(model, EDITS["cut"][0]):
        model(x)
        stops.append(True)
        if breaks:
            with pytest.raises(RuntimeError, match="stopped"):
                model(x)
        else:
            model(x)
    gc.collect()
    assert all(one() is None for one in seen)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_attention_that_is_read_before_it_meets_values_is_held_no_longer(with_gradients):
    seen, kept = [], []

    def way(q, k, v):
        scores = q @ k.mT / ROOT
        attention = scores.softmax(-1)
        kept[:] = [attention.mean(1).detach()]
        found = attention @ v
        seen.extend((ref(scores), ref(attention)))
        return found

    model, x = made(way)
    with torch.set_grad_enabled(with_gradients), edited(model, EDITS["cut"][0]):
        model(x)
        model(x)
    gc.collect()
    assert all(one() is None for one in seen)
