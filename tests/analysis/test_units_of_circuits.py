"""Circuits of edges, heads, tokens and pairs; of patches, nodes and two stacks."""

import json
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from circuits_by_hand import QUIET, TEXT, Patches, edges_of, kept_alone, rows_of
from torch import nn

import gattn
from gattn.errors import SelectionError


@pytest.mark.parametrize(
    ("units", "fields"),
    [
        ("heads", ["layer", "head"]),
        ("tokens", ["key"]),
        ("pairs", ["query", "key"]),
    ],
)
def test_units_are_kept_as_a_whole_and_dead_edges_are_not_shown(embedded, units, fields):
    found = gattn.circuit(TEXT, *embedded, target=" lamp", units=units, random=2, **QUIET)
    kept = found.units()
    assert list(kept.columns) == ["stack", *fields, "edges", "loss"]
    rows = found.table()[fields].drop_duplicates().itertuples(index=False, name=None)
    assert set(rows) == set(kept[fields].itertuples(index=False, name=None))
    assert kept["edges"].sum() == len(found.table()) == found.graph["edges"]
    # From every node of the circuit, there is a path to the answer.
    assert nx.ancestors(found, (4, 12)) | {(4, 12)} == set(found)
    alone = gattn.effect(
        TEXT, [found.only()], *embedded, metric="probability", target=" lamp", **QUIET
    )["edited"][0]
    whole, empty = found.graph["full"], found.graph["empty"]
    assert (alone - empty) / (whole - empty) == pytest.approx(found.faithfulness, abs=1e-4)


def test_the_patches_that_an_answer_needs_are_those_that_say_something():
    torch.manual_seed(0)
    model = Patches()
    x = torch.zeros(1, 9, 8, dtype=torch.float64)
    x[0, [2, 7]] = torch.randn(8, dtype=torch.float64)
    nn.init.zeros_(model.attend.in_proj_bias)
    found = gattn.circuit(
        lambda: (model(x)[0, 0] - model.attend.out_proj.bias).abs().sum(),
        model,
        units="tokens",
        keep=0.999,
        random=0,
        **QUIET,
    )
    assert set(found.units()["key"]) == {2, 7}
    assert found.faithfulness == pytest.approx(1, abs=1e-9)
    shown = found.by_token()
    assert np.isfinite(shown).to_numpy().nonzero()[0].tolist() == [2, 7]
    losses = found.units().set_index("key")["loss"]
    assert shown.sel(key=7) == losses[7]
    shown.draw_image(np.zeros((9, 9, 3)), grid=(3, 3))


def test_losses_by_token_are_those_of_tokens(river):
    with pytest.raises(SelectionError, match="units='tokens', and its units are 'edges'"):
        river.by_token()


def by_hand(conv, x, edges, keep):
    """One GAT layer by its formula, with the attention (queries, keys, heads) times `keep`."""
    heads, width = conv.heads, conv.out_channels
    features = (x @ conv.lin.weight.T).view(-1, heads, width)
    of_key = (features * conv.att_src[0]).sum(-1)
    of_query = (features * conv.att_dst[0]).sum(-1)
    scores = nn.functional.leaky_relu(of_query[:, None] + of_key[None], 0.2)
    is_edge = torch.eye(len(x), dtype=torch.bool)
    is_edge[edges[1], edges[0]] = True
    attention = scores.masked_fill(~is_edge[..., None], -torch.inf).softmax(1) * keep
    out = torch.einsum("qkh,khc->qhc", attention, features)
    return (out.flatten(1) if conv.concat else out.mean(1)) + conv.bias


@pytest.mark.parametrize("units", [pytest.param("pairs", marks=pytest.mark.slow), "edges"])
def test_the_subgraph_of_a_graph_attention_network_keeps_a_nodes_class(units):
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(3)
    nodes, node = 10, 4
    edges = torch.stack(torch.triu_indices(nodes, nodes, 1).unbind())
    edges = edges[:, torch.rand(edges.shape[1]) < 0.3]
    edges = torch.cat([edges, edges.flip(0)], 1)
    x = torch.randn(nodes, 6, dtype=torch.float64)
    first, last = (
        conv.double().eval()
        for conv in (pyg.GATConv(6, 4, heads=2), pyg.GATConv(8, 3, concat=False))
    )
    model = nn.ModuleList([first, last])
    model.forward = lambda x, edges: last(first(x, edges).relu(), edges)
    target = int(model(x, edges)[node].argmax())
    found = gattn.circuit(
        lambda: model(x, edges)[node],
        model,
        target=target,
        units=units,
        keep=0.8,
        random=1,
        **QUIET,
    )

    @torch.no_grad()
    def value(keep):
        hidden = by_hand(first, x, edges, keep[0, ..., :2]).relu()
        return float(by_hand(last, hidden, edges, keep[1, ..., :1])[node].softmax(-1)[target])

    keep = torch.zeros(2, nodes, nodes, 2, dtype=torch.float64)
    for layer, head, query, key in edges_of(found):
        keep[layer, query, key, head] = 1
    empty, full = value(torch.zeros_like(keep)), value(torch.ones_like(keep))
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-9)
    assert found.graph["full"] == pytest.approx(full, abs=1e-9)
    assert found.faithfulness == pytest.approx((value(keep) - empty) / (full - empty), abs=1e-9)
    assert found.completeness == pytest.approx(1 - (value(1 - keep) - empty) / (full - empty))
    assert found.faithfulness >= 0.8
    assert {query for layer, _, query, _ in edges_of(found) if layer == 1} == {node}
    assert found.graph["edges"] < 0.5 * found.graph["all_edges"]
    # Nodes of a graph network have no residual stream.
    assert {facts["kind"] for *_, facts in found.edges(data=True)} <= {"attention", "self"}
    found.draw()


def test_a_circuit_of_two_stacks_names_them(tiny):
    model = tiny("t5", "eager", torch.float64, d_model=16, d_ff=32, num_heads=2)
    given = {"input_ids": [3, 4, 5, 6], "decoder_input_ids": [0, 7, 8]}
    batch = {name: torch.tensor([ids]) for name, ids in given.items()} | {"use_cache": False}
    found = gattn.circuit(given, model, keep=0.7, random=0, **QUIET)
    assert "cross" in set(found.table()["stack"])
    every = [
        (stack, *place, query, key)
        for stack in ("encoder", "decoder", "cross")
        for place in product(range(2), range(2))
        for query, key in product(
            range(4 if stack == "encoder" else 3), range(3 if stack == "decoder" else 4)
        )
    ]
    plain, logits, nothing = (
        kept_alone(model, batch, rows)[0, -1] for rows in (every, rows_of(found), [])
    )
    kl, empty = (
        float((plain.softmax(-1) * (plain.log_softmax(-1) - x.log_softmax(-1))).sum())
        for x in (logits, nothing)
    )
    assert found.faithfulness == pytest.approx(1 - kl / empty, abs=1e-9)
    assert {len(node) for node in found} == {3}
    assert {node[0] for node in found} <= {"encoder", "decoder"}
    assert {found.nodes["decoder", depth, 2]["token"] for depth in (1, 2)} == {"8"}
    assert found.pred["decoder", 2, 2], "the stream of the last token does not reach the answer"


class Reader(nn.Module):
    """Queries that read other tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()

    def forward(self, x, keys):
        return self.attend(x, keys, keys, need_weights=False)[0]


def test_keys_that_are_other_tokens_have_their_own_names():
    model = Reader()
    x, keys = (torch.randn(1, count, 8).double() for count in (2, 5))
    found = gattn.circuit(
        lambda: model(x, keys)[0, 0].sum(), model, tokens=list("pqrst"), random=0, **QUIET
    )
    names = {"attend": "01", "attend keys": "pqrst"}
    for node, facts in found.nodes(data=True):
        assert facts["token"] == names[node[0]][node[2]]
    assert max(at for stack, _, at in found if stack == "attend keys") > 1


def test_a_classifier_of_texts_reads_no_tokens_stream():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=40, num_attention_heads=2, initializer_range=0.5, **sizes)
    model = BertForSequenceClassification(config).double().eval()
    found = gattn.circuit([7, 5, 9, 4], model, target=1, units="tokens", random=0, **QUIET)
    assert json.loads(found.graph["positions"]) == []
