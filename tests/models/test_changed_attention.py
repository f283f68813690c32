"""Attention that is mixed, scaled or changed between the softmax and its values."""

from __future__ import annotations

import pytest
import torch
from hand_written import DIM, HEADS, WIDTH, Layer
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError


class TalkingHeads(Layer):
    """Heads are mixed after the softmax, as in CaiT."""

    def __init__(self):
        super().__init__(None)
        self.mix = nn.Linear(HEADS, HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        mixed = self.mix(attention.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((mixed @ v).transpose(1, 2).flatten(2))


class Differential(Layer):
    """Each head reads with the difference of two softmaxes, as in the Differential Transformer."""

    def __init__(self):
        super().__init__(None)
        self.less = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        q, k, v = self.parts(x)
        pairs = (q @ k.mT / DIM**0.5).softmax(-1).view(len(x), HEADS // 2, 2, *[x.shape[1]] * 2)
        mixed = pairs[:, :, 0] - self.less * pairs[:, :, 1]
        v = v.transpose(1, 2).reshape(*x.shape[:2], HEADS // 2, -1).transpose(1, 2)
        return self.out(F.rms_norm(mixed @ v, v.shape[-1:]).transpose(1, 2).flatten(2))


class Gated(Layer):
    """Attention is a mixture of two softmaxes, as in ConViT."""

    def __init__(self):
        super().__init__(None)
        self.place = nn.Parameter(torch.randn(HEADS, 6, 6))

    def forward(self, x):
        q, k, v = self.parts(x)
        content = (q @ k.mT / DIM**0.5).softmax(-1)
        place = self.place.expand(len(x), -1, -1, -1).softmax(-1)
        mixed = 0.7 * content + 0.3 * place
        return self.out(((mixed / mixed.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore:.* mixes the attention of")
@pytest.mark.parametrize("kind", [TalkingHeads, Differential, Gated])
def test_attention_that_is_changed_before_its_values_is_shown_and_edited_as_the_softmax(kind):
    torch.manual_seed(0)
    model = nn.Sequential(kind(), kind()).double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    found = []

    def softmax(scores, dim):
        found.append(torch.exp(scores) / torch.exp(scores).sum(dim, keepdim=True))
        if len(found) == 1 and edits:
            found[0][0, 1, 3, 2] = 0
            found[0][0, 1] /= found[0][0, 1].sum(-1, keepdim=True)
        return found[-1]

    edits = False
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
        with edited(
            model, Cut(layer=0, head=1, query=3, key=2, stack=next(iter(run.trace.stacks)))
        ):
            cut = model(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "softmax", softmax)
            model(x)
            wanted, edits = list(found), True
            found.clear()
            torch.testing.assert_close(cut, model(x), rtol=1e-10, atol=1e-12)
    are_second = [name.endswith(" softmax 2") for name in run.trace.stacks]
    assert are_second == ([False, True] if kind is Gated else [False])
    per_layer = len(run.trace.stacks)
    for n, stack in enumerate(run.trace.stacks.values()):
        for (layer, head), graph in stack.items():
            close = pytest.approx(wanted[layer * per_layer + n][0, head].numpy(), rel=1e-9)
            assert graph.to_dense() == close
    with pytest.raises(CaptureError, match="contributions"), capturing(model, contributions=True):
        model(x)


class Changed(Layer):
    def __init__(self, change):
        super().__init__(None)
        self.change = change

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = self.change((q @ k.mT / DIM**0.5).softmax(-1))
        return self.out((attention @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda a: a**2, "pow"),
        (lambda a: torch.zeros_like(a).scatter(-1, a.argmax(-1, True), 1.0), "zeros_like"),
        (lambda a: (a > 0.2) + a - a.detach(), "add"),
        (lambda a: a * torch.linspace(0, 1, 6), "mul"),
        (lambda a: F.layer_norm(a, (6,)), "layer_norm"),
        (lambda a: a.cumsum(-1), "cumsum"),
        (lambda a: torch.div(torch.tensor(0.01), a + a), "div"),
    ],
)
def test_attention_that_becomes_something_else_is_refused(change, name):
    torch.manual_seed(0)
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), capturing(model), torch.no_grad():
        model(x)


@pytest.mark.parametrize(
    ("kind", "layers", "says"),
    [
        (TalkingHeads, 1, r"^0 \(TalkingHeads\) mixes the attention of its heads before it meets "),
        (Differential, 1, r"^0 \(Differential\) mixes the attention of its heads before it meets "),
        (
            TalkingHeads,
            2,
            r"values, and so does 1 more module: what is shown and edited are the softmaxes",
        ),
        (Gated, 3, r"several softmaxes before it meets the values, and so do 2 more modules:"),
    ],
)
def test_mixed_softmaxes_are_told_once(kind, layers, says):
    model = nn.Sequential(*(kind() for _ in range(layers))).eval()
    with pytest.warns(UserWarning, match=says) as told, capturing(model):
        model(torch.randn(1, 6, WIDTH))
    assert len(told) == 1


def test_slices_of_which_one_meets_values_alone_are_not_mixed():
    torch.manual_seed(0)
    model, x = nn.Sequential(PartlyMixed()).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), capturing(model), torch.no_grad():
        model(x)


class PartlyMixed(Layer):
    def __init__(self):
        super().__init__(None)

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        first = attention[:, :2] @ v[:, :2]
        mixed = (attention[:, 2:3] - 0.5 * attention[:, 3:]) @ v[:, 2:]
        return self.out(torch.cat((first, mixed), 1).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.mul_(0.9), "multiplies its attention with other numbers"),
        (lambda a: a * torch.linspace(0, 1, HEADS)[:, None, None], "multiplies its attention"),
        (lambda a: a * torch.linspace(0, 1, 6)[:, None], "multiplies its attention"),
        (lambda a: torch.einsum("bhij,gh->bgij", a, nn.Parameter(torch.eye(HEADS))), "mixes the"),
        (lambda a: torch.einsum("bhij,hg->bgij", a, MIX), "mixes the"),
        (lambda a: torch.einsum("gh,bhij->bgij", MIX.T, a), "mixes the"),
        (lambda a: torch.tensordot(a, MIX, ([1], [0])).permute(0, 3, 1, 2), "mixes the"),
        (lambda a: (MIX.T @ a.flatten(2)).view_as(a), "mixes the"),
        (lambda a: (a.permute(0, 2, 3, 1) @ MIX).permute(0, 3, 1, 2), "mixes the"),
    ],
)
def test_scaled_attention_is_told_from_a_mixture(change, says):
    torch.manual_seed(0)
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(UserWarning, match=says), capturing(model):
        model(x)


MIX = torch.randn(HEADS, HEADS, generator=torch.Generator().manual_seed(0))
"""Weights by which heads are mixed, a tensor that is no parameter."""


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.* mixes the attention of")
@pytest.mark.parametrize(
    "mixed",
    [
        lambda a: torch.einsum("bhij,hg->bgij", a, MIX.to(a)),
        lambda a: torch.tensordot(a, MIX.to(a), ([1], [0])).permute(0, 3, 1, 2),
        lambda a: (MIX.T.to(a) @ a.flatten(2)).view_as(a),
    ],
)
def test_heads_that_a_tensor_mixes_are_shown_and_edited_before(mixed):
    torch.manual_seed(0)
    model, x = Changed(mixed).double().eval(), torch.randn(2, 6, WIDTH, dtype=torch.double)
    q, k, v = model.parts(x)
    scores = q @ k.mT / DIM**0.5
    with capturing(model) as run:
        model(x)
    for element, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.as_tensor(trace[0, head].to_dense())
            torch.testing.assert_close(found, scores.softmax(-1)[element, head])
    scores[:, 1, 2, 3] = -torch.inf
    wanted = torch.einsum("bhij,hg->bgij", scores.softmax(-1), MIX.double()) @ v
    with edited(model, Cut(layer=0, head=1, query=2, key=3)):
        found = model(x)
    wanted = model.out(wanted.transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a * torch.linspace(0, 1, 6),
        lambda a: torch.einsum("bhij,hgj->bgij", a, MIX[..., None] * torch.linspace(0, 1, 6)),
        lambda a: (a.flatten(2) * torch.linspace(0, 1, 36)).view_as(a),
        lambda a: (a.flatten(2) @ torch.eye(36).roll(1, 0)).view_as(a),
    ],
)
def test_what_weighs_keys_differently_is_no_mixture_of_heads(change):
    model, x = Changed(change).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="is changed by"), capturing(model):
        model(x)
