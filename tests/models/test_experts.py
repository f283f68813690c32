"""Softmaxes that weigh experts are no attention, and take none of the model's attention away."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import gattn
from gattn.errors import CaptureError

_D, _E = 8, 4
_F = nn.functional


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(_D, _D) for _ in range(3))
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        attention = (self.q(x) @ self.k(x).mT / math.sqrt(_D)).softmax(-1)
        self.kept.append(attention.detach().clone())
        return attention @ self.v(x)


class _Experts(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.router = style, nn.Linear(_D, _E)
        self.experts = nn.ModuleList(nn.Linear(_D, _D) for _ in range(_E))
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, f"_{self.style}")(x)

    def _mixtral(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, _D)
        weights, chosen = torch.topk(_F.softmax(self.router(flat), -1), 2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            rows, which = torch.where(chosen == n)
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, which, None])
        return out.view_as(x)

    def _switch(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            out[chosen == n] = expert(x[chosen == n])
        return out * weight.unsqueeze(-1)

    def _dispatch(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(1, -1)
        hot = _F.one_hot(chosen[..., 0], _E).float()
        place = ((hot.cumsum(1) - 1) * hot).sum(-1).long()
        slots = hot[..., None] * _F.one_hot(place, x.shape[1]).float()[:, :, None]
        given = torch.einsum("btd,btec->ebcd", x, slots)
        made = torch.stack([expert(one) for expert, one in zip(self.experts, given, strict=True)])
        return torch.einsum("ebcd,btec->btd", made, slots * weight[..., None])

    def _sorted(self, x: Tensor) -> Tensor:
        """As DeepSeek's: each expert's tokens follow those of the one before, by numbers read."""
        flat = x.reshape(-1, _D)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort()
        counts = chosen.flatten().bincount(minlength=_E).cpu().numpy()
        parts = flat[order // 2].split(counts.tolist())
        made = torch.cat([expert(one) for expert, one in zip(self.experts, parts, strict=True)])
        back = torch.empty_like(made)
        back[order] = made
        return back.view(*chosen.shape, -1).mul_(weights[..., None]).sum(1).view_as(x)

    def _picked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.router(x).softmax(-1)
        self.loss = (attention.mean((0, 1)) ** 2).sum()
        weights, chosen = attention.topk(2, -1)
        all_made = torch.stack([expert(x) for expert in self.experts], -2)
        return weights, all_made.gather(-2, chosen[..., None].expand(*chosen.shape, _D))

    def _summed(self, x: Tensor) -> Tensor:
        weights, made = self._picked(x)
        return (weights[..., None] * made).sum(-2)

    def _einsum(self, x: Tensor) -> Tensor:
        weights, made = self._picked(x)
        return torch.einsum("btk,btkd->btd", weights, made)

    def _matmul(self, x: Tensor) -> Tensor:
        weights, made = self._picked(x)
        return (weights.unsqueeze(-2) @ made).squeeze(-2)


class _Block(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.norm, self.attends = nn.LayerNorm(_D), _Attends()
        self.experts = _Experts(style)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attends(self.norm(x))
        return x + self.experts(x)


class _Inline(_Experts):
    def __init__(self, style: str) -> None:
        super().__init__(style)
        self.attends = _Attends()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attends(x)
        return x + super().forward(x)


class _PickedKeys(nn.Module):
    """Attention whose largest numbers alone meet values, each query's own ones."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.other, self.v = style, _Attends(), nn.Linear(_D, _D)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ x.mT).softmax(-1).topk(2, -1)
        if self.style == "counted":
            chosen = chosen + 0 * min(chosen.flatten().bincount().tolist())
        value = torch.stack([one[n] for one, n in zip(self.v(x), chosen, strict=True)])
        if self.style != "einsum":
            x = x + (weights[..., None] * value).sum(-2)
        else:
            x = x + torch.einsum("btk,btkd->btd", weights, value)
        return self.other(x)


_STYLES = "mixtral", "switch", "dispatch", "sorted", "summed", "einsum", "matmul"


@pytest.mark.parametrize("kind", [_Block, _Inline])
@pytest.mark.parametrize("style", _STYLES)
@pytest.mark.filterwarnings("ignore:.* not show")
def test_routers_are_no_attention(style: str, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(style), kind(style)).eval()
    x = torch.randn(2, 6, _D)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(x)
    assert len(run.traces) == 2
    for n, trace in enumerate(run.traces):
        assert len(trace.only_stack) == 2
        for layer, block in enumerate(model):
            expected = block.attends.kept[-1][n]
            torch.testing.assert_close(torch.as_tensor(trace[layer, 0].to_dense()), expected)


class _Gated(nn.Module):
    """A softmax over as many channels, or experts, as a vector has, each of which weighs one."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.scores = style, nn.Linear(_D, _D)
        self.experts = nn.ModuleList(nn.Linear(_D, _D) for _ in range(_D))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.scores(x).softmax(-1)
        if self.style == "channels":
            return x * weights
        made = [weights[..., n : n + 1] * one(x) for n, one in enumerate(self.experts)]
        return x + sum(made)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("style", ["channels", "experts"])
def test_what_a_gate_weighed_may_attend(style: str, is_normed: bool) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(_D) if is_normed else nn.Identity()
    model = nn.Sequential(_Gated(style), norm, _Attends(), _Gated(style), _Attends()).eval()
    x = torch.randn(2, 6, _D)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(x)
    for n, trace in enumerate(run.traces):
        for layer, block in enumerate((model[2], model[4])):
            expected = block.kept[-1][n]
            torch.testing.assert_close(torch.as_tensor(trace[layer, 0].to_dense()), expected)


class _Cast(nn.Linear):
    """Multiplies with its weights in the type of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype).T


@torch.no_grad()
def test_weights_that_are_cast_are_learned_all_the_same() -> None:
    torch.manual_seed(0)
    for _ in range(8):  # Memory that a cast weight leaves may be taken by another's.
        model = nn.Sequential(_Gated("channels"), _Attends()).eval()
        for name, one in list(model.named_modules()):
            if isinstance(one, nn.Linear):
                of, _, last = name.rpartition(".")
                cast = _Cast(one.in_features, one.out_features)
                model.get_submodule(of).register_module(last, cast)
        x = torch.randn(2, 6, _D).double()
        with warnings.catch_warnings(), gattn.capturing(model) as run:
            warnings.filterwarnings("error", ".*codebook")
            model(x)
        for n, trace in enumerate(run.traces):
            expected = model[1].kept[-1][n]
            torch.testing.assert_close(torch.as_tensor(trace[0, 0].to_dense()), expected)


@pytest.mark.parametrize("style", ["sum", "einsum", "counted"])
def test_picked_keys_are_attention_that_is_changed(style: str) -> None:
    torch.manual_seed(0)
    model = _PickedKeys(style).eval()
    x = torch.randn(2, 6, _D)
    with pytest.raises(CaptureError, match="changed by topk"), gattn.capturing(model):
        model(x)


class _Table(_Attends):
    """Attends to values that tokens write into what was made like a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, _D))

    def forward(self, x: Tensor) -> Tensor:
        attention = (self.q(x) @ self.k(x).mT / math.sqrt(_D)).softmax(-1)
        self.kept.append(attention.detach().clone())
        values = self.table.new_zeros(x.shape)
        values.copy_(self.v(x))
        return attention @ values


@pytest.mark.parametrize("is_inference", [False, True])
def test_what_tokens_write_beside_a_parameter_is_not_learned(is_inference: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_Table(), _Attends()).eval()
    x = torch.randn(2, 6, _D)
    with torch.inference_mode(is_inference), torch.no_grad(), gattn.capturing(model) as run:
        model(x)
    for n, trace in enumerate(run.traces):
        stacks = [stack for stack in trace.stacks.values() for _ in stack.layers]
        assert len(stacks) == 2
        found = torch.as_tensor(next(iter(trace.stacks.values()))[0, 0].to_dense())
        torch.testing.assert_close(found, model[0].kept[-1][n])


class _Added(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(x)


@torch.no_grad()
def test_an_edit_that_changes_the_choice_of_experts_is_told() -> None:
    torch.manual_seed(0)
    parts = _Attends(), _Experts("mixtral"), _Attends(), _Experts("mixtral"), _Attends()
    model, x = nn.Sequential(*map(_Added, parts)).eval(), torch.randn(1, 8, _D)
    cut = gattn.Cut(layer=0)
    told = r"^1\.part \(_Experts\) chooses otherwise under the edits than without them"
    with (
        pytest.warns(UserWarning, match=told) as said,
        gattn.capturing(model) as run,
        gattn.edited(model, cut),
    ):
        found = model(x)
    assert not any("picks or orders" in str(one.message) for one in said)
    torch.testing.assert_close(found, model[1:](x))
    own = parts[2].kept[-1][0]
    assert torch.allclose(torch.as_tensor(run.trace[1, 0].to_dense()), own, atol=1e-6)
    with warnings.catch_warnings(), gattn.capturing(model), gattn.edited(model, gattn.Cut(layer=2)):
        warnings.simplefilter("error")
        model(x)


@torch.no_grad()
def test_effects_of_many_edits_warn_of_other_choices_once() -> None:
    torch.manual_seed(0)
    parts = _Attends(), _Experts("mixtral"), _Attends(), _Experts("mixtral"), _Attends()
    model, x = nn.Sequential(*map(_Added, parts)).eval(), torch.randn(1, 8, _D)
    cuts = [gattn.Cut(layer=layer) for layer in (0, 0, 1)]
    for _ in range(2):
        with pytest.warns(UserWarning, match="chooses otherwise") as said:
            found = gattn.effect(lambda: model(x)[0, -1:], cuts, model, progress=False)
        assert sum("chooses otherwise" in str(one.message) for one in said) == 1
        assert found["effect"].iloc[0] == found["effect"].iloc[1] != 0
