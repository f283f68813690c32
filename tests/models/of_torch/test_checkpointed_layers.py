"""Layers that checkpointing computes twice, captured and edited."""

from __future__ import annotations

import pytest
import torch
from hand_written import HEADS, WIDTH, Model, made
from ways_of_attending import kernel, written

from gattn import Cut, capturing, edited
from gattn.errors import EditError


class Checkpointed(Model):
    def __init__(self, way, is_reentrant):
        super().__init__(way)
        self.is_reentrant = is_reentrant

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.is_reentrant)
        return x


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("way", [kernel, written])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_capture_leaves_checkpoints_as_they_are(way, is_reentrant, is_inside):
    torch.manual_seed(0)
    model = Checkpointed(way, is_reentrant).double().eval()
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(model.dense(x)[1].square().sum(), x)
    with capturing(model) as run:
        loss = model(x).square().sum()
        if is_inside:
            loss.backward()
    if not is_inside:
        loss.backward()
    assert len(run.traces[0].only_stack) == 2 * HEADS
    torch.testing.assert_close(x.grad, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_edits_that_a_checkpoint_would_compute_without_them_are_refused(is_reentrant):
    torch.manual_seed(0)
    model, x = Checkpointed(written, is_reentrant), torch.randn(1, 6, WIDTH, requires_grad=True)
    says = "call backward.. inside the context"
    with pytest.raises(EditError, match=says), edited(model, Cut(layer=1, key=0)):
        model(x)


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_gradients_of_edits_in_a_checkpoint_are_taken_inside_the_context(is_reentrant, is_inside):
    torch.manual_seed(0)
    model = Checkpointed(written, is_reentrant).double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    cut = Cut(layer=1, head=0, key=2)
    plain = Model(written).double().eval()
    plain.load_state_dict(model.state_dict())
    with edited(plain, cut):
        (wanted,) = torch.autograd.grad(plain(x).square().sum(), x)
    with edited(model, cut):
        output = model(x)
        if is_inside:
            output.square().sum().backward()
    if is_inside:
        torch.testing.assert_close(x.grad, wanted, rtol=1e-9, atol=1e-11)
        return
    with pytest.raises(EditError, match=r"call backward.. inside the context"):
        output.square().sum().backward()
    assert x.grad is None


def test_checkpointed_layers_keep_their_edits_in_the_backward_pass():
    model, x = made(kernel)
    forward = model.blocks[1].forward
    x.requires_grad_()
    cut = Cut(layer=1, head=0, key=2)
    with edited(model, cut):
        model(x).square().sum().backward()
    found, x.grad = x.grad, None
    model.blocks[1].forward = lambda x: torch.utils.checkpoint.checkpoint(
        forward, x, use_reentrant=False
    )
    with edited(model, cut):
        model(x).square().sum().backward()
    torch.testing.assert_close(x.grad, found, rtol=1e-12, atol=1e-12)
