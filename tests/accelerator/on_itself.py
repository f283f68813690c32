"""The pretend accelerator finds what it is there to find, planted in gattn's own code."""

import inspect

import on_device
import pretend
import pytest
import torch
from chosen import accelerator

from gattn.attention import graph_attention
from gattn.engines import tiles
from gattn.graph.token_graph import TokenGraph

if accelerator is not pretend:
    pytest.skip("here is a GPU", allow_module_level=True)
GRAPH = TokenGraph.window(9, 3)


def attend(**options):
    tokens = torch.randn(2, 9, 4).to(pretend.NAME, non_blocking=True)
    return graph_attention(tokens, tokens, tokens, GRAPH, engine="tiles", **options)


def planted(monkeypatch, line, instead):
    """Write a line of `tiles._attend` anew; give its number."""
    source = inspect.getsource(tiles._attend)
    assert source.count(line) == 1
    start = inspect.getsourcelines(tiles._attend)[1]
    changed = compile("\n" * (start - 1) + source.replace(line, instead), tiles.__file__, "exec")
    exec(changed, vars(tiles) | (found := {}) or found, found)
    monkeypatch.setattr(tiles, "_attend", found["_attend"])
    return start + source[: source.index(line)].count("\n")


VALUES = "value, value_rest = tiles.keys(state[2])"


def test_a_tensor_on_the_wrong_device_is_found_with_its_line(monkeypatch):
    attend()
    line = planted(monkeypatch, VALUES, f"{VALUES}; value * torch.ones(value.shape)")
    with pytest.raises(RuntimeError, match=r"two devices") as raised:
        attend()
    lines = {(str(entry.path), entry.lineno + 1) for entry in raised.traceback}
    assert (tiles.__file__, line) in lines


@pytest.mark.parametrize(
    ("read", "what"),
    [
        ("value.sum().item()", "_local_scalar_dense"),
        ("bool(value.isnan().any())", "_local_scalar_dense"),
        ("value.cpu()", "a copy to the host"),
        ("torch.ones(3).to(value.device)", "a copy to the device"),
        ("torch.tensor(3, device=value.device)", "a copy to the device"),
        ("value.tolist()", "a copy to the host"),
        ("value[value > 0]", "index by booleans"),
        ("value.nonzero()", "nonzero"),
        ("value.unique()", "_unique2"),
    ],
)
def test_a_hidden_read_is_found_with_its_line(monkeypatch, read, what):
    attend()
    pretend.forget()
    attend()
    assert not pretend.reads
    line = planted(monkeypatch, VALUES, f"{VALUES}; {read}")
    attend()
    assert {(x.what, x.line) for x in pretend.reads} >= {(what, f"gattn/engines/tiles.py:{line}")}


def test_a_read_within_a_gradient_is_found(monkeypatch):
    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            gradient.sum().item()
            return gradient

    x = torch.ones(3).to(pretend.NAME).requires_grad_()
    y = Looks.apply(x)
    pretend.forget()
    y.sum().backward()
    assert [read.what for read in pretend.reads] == ["_local_scalar_dense"]


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, y: x @ y,
        lambda x, y: y @ x,
        lambda x, y: x + y,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.index_select(0, y[0].long()),
        lambda x, y: y[x[0].long()],
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x.masked_fill(y > 0, 0.0),
        lambda x, y: torch.mm(x, x, out=y),
        lambda x, y: x.add_(y),
    ],
)
def test_mixed_devices_are_refused(mixed):
    x, y = torch.ones(2, 2).to(pretend.NAME), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"devices?"):
        mixed(x, y)


def test_numbers_and_views_are_as_on_a_cpu():
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(4, 6, generator=generator).requires_grad_()
    moved = plain.detach().to(pretend.NAME).requires_grad_()
    for x in (plain, moved):
        y = (x @ x.T).softmax(-1)
        z = torch.zeros_like(y)
        z[1:, ::2] = y[:-1, 1::2].exp()
        z.view(2, 8)[0].mul_(3)
        (z.cumsum(0) * y).sum().backward()
    torch.testing.assert_close(moved.grad.cpu(), plain.grad)
    assert str(moved.grad.device) == f"{pretend.NAME}:0"


def test_reads_of_the_tests_own_lines_are_not_gattns():
    there = torch.ones(2).to(pretend.NAME)
    pretend.forget()
    there.tolist()
    assert len(pretend.reads) == 1
    assert not on_device.by_gattn(pretend.reads)
