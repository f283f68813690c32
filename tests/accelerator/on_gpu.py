"""What only a GPU shows: half precision, compiled kernels, streams, and memory."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn import All, Cut, GraphAttention, Threshold, TokenGraph, TopK, attention_graphs
from gattn.engines import choice

if not torch.cuda.is_available():
    pytest.skip("here is no GPU", allow_module_level=True)

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
HALVES = [torch.bfloat16, torch.float16]
ROUNDED = {"atol": 0.02, "rtol": 0.02}
"""Scores of a few units, rounded to eight bits, change attention by some hundredths."""


@pytest.fixture(autouse=True)
def _no_notes():
    """Other files of this folder let torch warn of each wait."""
    torch.cuda.set_sync_debug_mode("default")


def dense(trace):
    return {(head.layer, head.head): head.to_dense() for head in trace.heads()}


def logits(model, ids):
    with torch.no_grad():
        return model(ids)[0]


# transformers


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_capture_leaves_the_output_and_shows_its_attention(tiny, name, dtype):
    model = tiny(name, dtype=dtype).cuda()
    exact = tiny(name, "eager", dtype=torch.float64).cuda()
    exact.load_state_dict(model.state_dict())
    ids = torch.tensor([IDS], device="cuda")
    plain = logits(model, ids)
    with torch.no_grad(), gattn.capturing(model) as run:
        assert torch.equal(model(ids)[0], plain)
    with torch.no_grad():
        wanted = exact(ids, output_attentions=True).attentions
    for (layer, head), found in dense(run.trace).items():
        np.testing.assert_allclose(found, wanted[layer][0, head].cpu(), **ROUNDED)


@pytest.mark.parametrize("dtype", HALVES)
def test_edits_in_half_precision(tiny, dtype):
    model = tiny("llama", dtype=dtype).cuda()
    exact = tiny("llama", dtype=torch.float64).cuda()
    exact.load_state_dict(model.state_dict())
    ids, cut = torch.tensor([IDS], device="cuda"), Cut(0, 1, query=5, key=2)
    with gattn.edited(model, cut):
        found = logits(model, ids)
    with gattn.edited(exact, cut):
        wanted = logits(exact, ids)
    assert (found.double() - wanted).norm() < 0.05 * wanted.norm()
    assert not torch.equal(found, logits(model, ids))


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast(tiny, dtype):
    model = tiny("gpt2").cuda()
    ids = torch.tensor([IDS], device="cuda")
    exact = gattn.capture(IDS, tiny("gpt2"))
    with torch.autocast("cuda", dtype):
        plain = logits(model, ids)
        with torch.no_grad(), gattn.capturing(model) as run:
            assert torch.equal(model(ids)[0], plain)
    for place, found in dense(run.trace).items():
        np.testing.assert_allclose(found, dense(exact)[place], **ROUNDED)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generated_text(tiny, cache):
    model = tiny("llama")
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
    found = []
    for one in (model, tiny("llama").cuda()):
        ids = torch.tensor([IDS], device=one.device)
        plain = one.generate(ids, **options)
        with gattn.capturing(one) as run:
            assert torch.equal(one.generate(ids, **options), plain)
        found.append((plain.cpu(), dense(run.trace)))
    assert torch.equal(found[0][0], found[1][0])
    for place, attention in found[0][1].items():
        np.testing.assert_allclose(found[1][1][place], attention, atol=1e-4)


@pytest.mark.parametrize("keep", [TopK(4), Threshold(0.05)])
@pytest.mark.parametrize("dtype", HALVES)
def test_kernels_emit_what_blocks_hold(tiny, monkeypatch, keep, dtype):
    model = tiny("llama", dtype=dtype, max_position_embeddings=1024).cuda()
    ids = torch.randint(0, 60, (1, 700), generator=torch.Generator().manual_seed(0))
    calls, run = [], gattn.engines.kernels.emitting.emit
    monkeypatch.setattr(
        "gattn.heads.store.emitted.emit", lambda *given: calls.append(0) or run(*given)
    )
    found = gattn.capture(ids, model, keep=keep)
    assert calls
    monkeypatch.setattr(choice, "KERNELS_ON", ())
    whole = gattn.capture(ids, model, keep=All())
    for one, other in zip(found.heads(), whole.heads(), strict=True):
        matrix = other.to_dense()
        rows, columns = one.query, one.key
        np.testing.assert_allclose(one.attention, matrix[rows, columns], **ROUNDED)
        np.testing.assert_allclose(one.total_mass, 1, atol=1e-3)
        least = matrix[rows, columns].min() if isinstance(keep, Threshold) else 0
        assert least >= (keep.t - 0.002 if isinstance(keep, Threshold) else 0)


def test_another_stream(tiny):
    model, wanted = tiny("gpt2").cuda(), dense(gattn.capture(IDS, tiny("gpt2")))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = dense(gattn.capture(IDS, model, keep=TopK(9)))
    for place, attention in wanted.items():
        np.testing.assert_allclose(found[place], attention, atol=1e-5)


def test_memory_grows_with_the_edges_that_are_kept():
    """At 16,384 tokens a single matrix of attention would be 512 MiB in bfloat16."""
    query, key = (torch.randn(4, 16_384, 64, device="cuda", dtype=torch.bfloat16) for _ in "qk")
    graph = TokenGraph.causal(16_384)
    attention_graphs(query, key, graph, keep=TopK(8))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    heads = attention_graphs(query, key, graph, keep=TopK(8))
    peak = torch.cuda.max_memory_allocated() - before
    edges = sum(head.graph.num_edges for head in heads)
    assert peak < 160 * edges


# Models of no library of transformers


def close(found, wanted, **options):
    options = options or {"atol": 1e-5}
    assert found.keys() == wanted.keys()
    for place, attention in wanted.items():
        np.testing.assert_allclose(found[place], attention, **options)


def test_torch_encoders_take_their_fast_path_outside():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(1, 9, 32)
    found = []
    for model, given in ((plain, x), (nn.TransformerEncoder(layer, 2).eval().cuda(), x.cuda())):
        model.load_state_dict(plain.state_dict())
        with torch.no_grad(), gattn.capturing(model) as run:
            output = model(given)
        with torch.no_grad(), gattn.edited(model, Cut(1, 3, query=5, key=2)):
            found.append((dense(run.trace), output.cpu(), model(given).cpu()))
    close(found[1][0], found[0][0])
    for one, other in zip(found[1][1:], found[0][1:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_layers_of_torch_geometric(kind):
    import torch_geometric.nn as library

    torch.manual_seed(0)
    options = {} if kind == "TransformerConv" else {"add_self_loops": False}
    layer = getattr(library, kind)(8, 4, heads=2, **options).cuda().eval()
    x = torch.randn(7, 8, device="cuda")
    index = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 3], [1, 2, 3, 4, 5, 6, 0, 3, 1]], device="cuda")
    with torch.no_grad():
        plain, (edges, weights) = layer(x, index, return_attention_weights=True)
        with gattn.capturing(layer) as run:
            assert torch.equal(layer(x, index), plain)
    for head in range(2):
        matrix = run.trace[0, head].to_dense()
        np.testing.assert_allclose(matrix[tuple(edges.flip(0).cpu())], weights[:, head].cpu())
    stays = torch.arange(9) != 7
    with torch.no_grad(), gattn.edited(layer, Cut(query=3, key=0)):
        found = layer(x, index)
    with torch.no_grad():
        torch.testing.assert_close(found, layer(x, index[:, stays.cuda()]))


@pytest.mark.parametrize("weight", [None, gattn.Cosine()])
def test_a_layer_learns_as_on_a_cpu(weight):
    torch.manual_seed(0)
    plain = GraphAttention(8, 4, heads=2, weight=weight)
    index = torch.randint(0, 40, (2, 200), generator=torch.Generator().manual_seed(1)).unique(dim=1)
    x, found = torch.randn(40, 8), []
    for device in ("cpu", "cuda"):
        layer = GraphAttention(8, 4, heads=2, weight=weight).to(device)
        layer.load_state_dict(plain.state_dict())
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = layer(x.to(device), index.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_compiled_models_are_read(tiny):
    model = tiny("llama").cuda()
    ids = torch.tensor([IDS], device="cuda")
    wanted = dense(gattn.capture(IDS, tiny("llama")))
    compiled = torch.compile(model)
    with torch.no_grad():
        compiled(ids)
        with gattn.capturing(model) as run:
            compiled(ids)
    close(dense(run.trace), wanted)
