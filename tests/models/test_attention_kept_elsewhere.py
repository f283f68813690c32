"""Attention that code logs, copies or keeps before it meets the values: edits are read there."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from hand_written import DIM, EDITS, ROOT, TOKENS, WIDTH, Layer, Model, check, made, without
from torch import nn

from gattn import Ablate, Cut, capturing, edited
from gattn.errors import CaptureError, EditError

READS = {
    "itself": lambda a: a,
    "detached": lambda a: a.detach(),
    "data": lambda a: a.data,
    "cpu": lambda a: a.cpu(),
    "to cpu": lambda a: a.detach().to("cpu"),
    "cpu of data": lambda a: a.data.cpu(),
    "cpu of a copy": lambda a: a.detach().clone().cpu(),
    "array": lambda a: a.detach().cpu().numpy(),
    "array of NumPy's": lambda a: np.asarray(a.detach()),
    "array of a mean": lambda a: a.detach().mean((0, 1)).numpy(),
    "list": lambda a: a.tolist(),
    "half": lambda a: a.half().cpu(),
    "deep copy": lambda a: copy.deepcopy(a.detach()),
    "heads": lambda a: [head.detach().cpu() for head in a.unbind(1)],
    "mean over heads": lambda a: a.mean(1),
    "largest": lambda a: float(a.max()),
    "largest in words": lambda a: f"{a.max():.6f}",
    "entropy": lambda a: -(a * (a + 1e-9).log()).sum(-1).mean().item(),
    "entropy of torch's": lambda a: torch.distributions.Categorical(probs=a).entropy(),
    "sums": lambda a: torch.allclose(a.sum(-1), torch.ones_like(a[..., 0])),
    "places": lambda a: a.argmax(-1),
    "top": lambda a: a.topk(2, -1),
    "similarity": lambda a: a @ a.mT,
    "list of places": lambda a: a.argmax(-1).tolist(),
}


def saved(a):
    torch.save(a.detach(), file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


def put(a):
    kept = torch.zeros(3, *a.shape, dtype=a.dtype)
    kept[1] = a.detach()
    return kept


READS |= {
    "copy of a head": lambda a: a[:, 2].clone(),
    "copy of a selected head": lambda a: a.detach().select(1, 2).clone(),
    "array of a head": lambda a: a[:, 2].detach().cpu().numpy().copy(),
    "list of a head": lambda a: a[0, 2].tolist(),
    "array by DLPack": lambda a: np.from_dlpack(a.detach()).copy(),
    "saved": saved,
    "pickled": lambda a: pickle.loads(pickle.dumps(a.detach())),
    "put into another": put,
    "parameter": lambda a: nn.Parameter(a.detach().clone()),
    "copied into another": lambda a: torch.zeros_like(a).copy_(a.detach()),
    "alias": lambda a: torch.as_tensor(a.detach()).clone(),
}
COPIES = {
    "new tensor": lambda a: a.new_tensor(a),
    "tensor": torch.tensor,
}


def keeping(read, kept):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(read(attention))
        return attention @ v

    return way


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_attention_that_code_reads_is_shown_and_edited(read):
    check(keeping(read, []))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_code_reads_what_edits_wrote(read, with_gradients):
    kept = []
    model, x = made(keeping(read, kept))
    with torch.set_grad_enabled(with_gradients):
        for edit, change in EDITS.values():
            with edited(model, edit):
                model(x)
                kept.clear()
                found = model(x)
            attention, wanted = model.dense(x, change)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
            assert len(kept) == len(attention)
            for one, own in zip(kept, attention, strict=True):
                _assert_alike(one, read(own))


@pytest.mark.parametrize("read", COPIES.values(), ids=COPIES)
@pytest.mark.filterwarnings("ignore:To copy construct")
@torch.no_grad()
def test_new_tensors_of_attention_hold_what_edits_wrote(read):
    kept = []
    model, x = made(keeping(read, kept))
    edit, change = EDITS["cut"]
    with edited(model, edit):
        model(x)
    for one, wanted in zip(kept[-2:], model.dense(x, change)[0], strict=True):
        torch.testing.assert_close(one, wanted.detach(), rtol=0, atol=1e-12)


class Pair(Layer):
    """Returns its attention beside its output, as many layers do."""

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / ROOT).softmax(-1)
        return self.out((attention @ v).transpose(1, 2).flatten(2)), attention


class Returning(Model):
    """Returns all of it."""

    def forward(self, x):
        kept = []
        for block in self.blocks:
            found, attention = block(x)
            x = x + found
            kept.append(attention)
        return x, kept


@pytest.mark.parametrize("with_gradients", [False, True])
def test_attention_that_a_model_returns_is_edited(with_gradients):
    model, x = Returning(None).double().eval(), made(None)[1]
    model.blocks = nn.ModuleList(Pair(None) for _ in range(2)).double()
    for edit, change in EDITS.values():
        with torch.set_grad_enabled(with_gradients), edited(model, edit):
            found, attention = model(x)
        wanted, output = model.dense(x, change)
        torch.testing.assert_close(found, output, rtol=0, atol=1e-11)
        for one, other in zip(attention, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def _assert_alike(found, wanted):
    if isinstance(wanted, (str, bool)):
        assert found == wanted
    elif isinstance(wanted, (tuple, list)) and isinstance(wanted[0], torch.Tensor):
        for one, other in zip(found, wanted, strict=True):
            _assert_alike(one, other)
    else:
        one, other = (torch.as_tensor(x).detach().double() for x in (found, wanted))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


class Hooked(Layer):
    """Takes its softmax by a module, which users hook."""

    def __init__(self):
        super().__init__(None)
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = self.softmax(q @ k.mT / ROOT)
        return self.out((attention @ v).transpose(1, 2).flatten(2))


@torch.no_grad()
def test_hooks_that_keep_a_softmax_read_what_edits_wrote():
    model, x = made(None)
    model.blocks, kept = nn.ModuleList(Hooked() for _ in range(2)).double().eval(), []
    for block in model.blocks:
        block.softmax.register_forward_hook(lambda m, a, y: kept.append(y.cpu().numpy()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(model) as run:
            model(x)
    assert len(list(run.traces[0].heads())) == 8
    edit, change = EDITS["cut"]
    with edited(model, edit):
        model(x)
    for one, wanted in zip(kept[-2:], model.dense(x, change)[0], strict=True):
        assert one == pytest.approx(wanted.numpy(), abs=1e-12)


def ordered(q, k, v):
    order = np.argsort((q @ k.mT).softmax(-1).numpy()[0, 0, 0])
    return (q[:, :, torch.tensor(order)] @ k.mT / ROOT).softmax(-1) @ v


def turned_below(q, k, v):
    attention = (q @ k.mT / ROOT).softmax(-1)
    return attention @ (v.flip(2) if attention.numpy().max() < 0.05 else v)


@torch.no_grad()
@pytest.mark.parametrize("way", [ordered, turned_below])
def test_arrays_that_decide_something_are_not_only_kept(way):
    model, x = made(way)
    with pytest.raises(CaptureError, match="picks or orders numbers"), capturing(model):
        model(x)


class Logging(nn.Module):
    """Logs its attention in a loop over heads, whose edits are put in head by head."""

    def __init__(self):
        super().__init__()
        self.qkv, self.logged = nn.Linear(WIDTH, 3 * WIDTH), []

    def forward(self, x):
        heads = []
        for q, k, v in self.qkv(x).unflatten(-1, (3, -1, DIM)).permute(3, 2, 0, 1, 4):
            attention = (q @ k.mT / ROOT).softmax(-1)
            self.logged.append(float(attention.max()))
            heads.append(attention @ v)
        return torch.cat(heads, -1)


@torch.no_grad()
def test_edits_reach_each_of_several_softmaxes_that_are_read():
    torch.manual_seed(0)
    model, x = Logging().double().eval(), torch.randn(2, TOKENS, WIDTH).double()
    with edited(model, Cut(layer=0, key=slice(1, None))):
        found = model(x)
    assert model.logged[-4:] == [1.0] * 4  # All that is left is one key.
    torch.testing.assert_close(found, model.qkv(x)[:, :1, 2 * WIDTH :].expand_as(x))


@torch.no_grad()
def test_patches_of_outputs_leave_attention_that_is_read_alone():
    kept = []
    model, x = made(keeping(READS["mean over heads"], kept), batch=1)
    plain = [model(x), kept.pop()][1]
    with edited(model, Ablate("zero", layer=1, head=2, what="outputs")):
        found = model(x)
    torch.testing.assert_close(kept[-1], plain, rtol=0, atol=0)
    others = (torch.arange(4) != 2).double()[:, None, None]
    wanted = model.dense(x, lambda a, layer: a * others if layer == 1 else a)
    torch.testing.assert_close(found, wanted[1], rtol=0, atol=1e-12)


class Masked(Layer):
    """Keeps its attention, and then loses that to tokens with a large number."""

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / ROOT).softmax(-1)
        self.kept = attention.detach().clone()
        attention = attention.masked_fill(is_large(x), 0.0)
        return self.out((attention @ v).transpose(1, 2).flatten(2))


def is_large(x):
    return (x.abs().amax(-1) > 20)[:, None, None]


def masked():
    model, x = made(None)
    model.blocks = nn.ModuleList(Masked(None) for _ in range(2)).double().eval()
    x[:, 5] *= 40
    with torch.no_grad():
        model(x)  # From now on it keeps something.
    return model, x


@pytest.mark.parametrize("with_gradients", [False, True])
def test_attention_that_a_mask_takes_after_it_was_proved_is_not_edited_before(with_gradients):
    model, x = masked()
    y = x
    with torch.no_grad():
        for block in model.blocks:
            q, k, v = block.parts(y)
            attention = without((q @ k.mT / ROOT).softmax(-1), list(model.blocks).index(block))
            attention = attention.masked_fill(is_large(y), 0.0)
            y = y + block.out((attention @ v).transpose(1, 2).flatten(2))
    with torch.set_grad_enabled(with_gradients), edited(model, EDITS["cut"][0]):
        model(0.01 * x)
        assert bool((model.blocks[1].kept[:, 2, 4, 3] == 0).all())
        with pytest.raises(EditError, match=r"blocks\.1 .*changes its attention"):
            model(x)
        with pytest.warns(UserWarning, match="keeps or returns of it is not edited"):
            found = model(x)
        torch.testing.assert_close(found, y, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*keeps or returns of it is not edited")
def test_what_a_mask_took_is_shown_where_other_layers_are_edited_early():
    model, x = masked()
    q, k, _ = model.blocks[0].parts(x)
    wanted = (q @ k.mT / ROOT).softmax(-1)
    wanted = wanted.masked_fill(is_large(x), 0.0)
    with edited(model, EDITS["cut"][0]):
        model(0.01 * x)
        with capturing(model, layers=0) as run:
            with pytest.raises(EditError):
                model(x)
            model(x)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            assert graph.to_dense() == pytest.approx(wanted[row, head].numpy(), abs=1e-12)
