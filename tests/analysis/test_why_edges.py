"""Edges of circuits and routes that say who wrote their queries and keys."""

import re

import networkx as nx
import pytest
import torch

import gattn
from gattn.analysis import routes, why_edges
from gattn.errors import SelectionError

TEXT = "The river tall green lamp river tall green lamp river tall green"
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def circuit():
    return gattn.circuit(TEXT, target=" lamp", random=0, **QUIET)


@pytest.fixture(scope="module")
def told(circuit):
    return why_edges(circuit, TEXT, **QUIET)


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(TEXT, scores=True)


def of_edge(found, head):
    return {name: found[f"{name}_{head}"] for name in ("score", "query_part", "key_part", "share")}


def score_of(trace, layer, head, query, key):
    graph = trace[layer, head]
    return float(graph.score[(graph.query == query) & (graph.key == key)][0])


def check(edge, words, layer, head, query, key, trace):
    """Compare an edge with the pairs of `gattn.why` for it alone, and with the model's score."""
    table = gattn.why(TEXT, layer=layer, head=head, query=query, key=key).table()
    first = table.iloc[0]
    assert edge["score"] == pytest.approx(score_of(trace, layer, head, query, key), abs=1e-4)
    assert (edge["query_part"], edge["key_part"]) == (first.query_part, first.key_part)
    assert edge["share"] == pytest.approx(first["score"] / edge["score"], rel=1e-4)
    said = re.findall(r"([^,]+) × ([^,]+) ([−\d]+)\s?%", words)
    expected = [
        (row.query_part, row.key_part, f"{round(100 * row.share)}".replace("-", "−"))
        for row in table.head(3).itertuples()
    ]
    assert [tuple(part.strip() for part in one) for one in said] == expected


def test_every_edge_of_a_circuit_says_who_wrote_its_ends(circuit, told, trace):
    assert type(told) is type(circuit)
    assert told.trace is circuit.trace
    assert not any("why_1" in facts for *_, facts in circuit.edges(data=True))
    table = told.table()
    for row in table.itertuples():
        facts = told.edges[(row.layer, row.key), (row.layer + 1, row.query)]
        assert facts[f"why_{row.head}"] == row.why
        check(of_edge(facts, row.head), row.why, row.layer, row.head, row.query, row.key, trace)
    induction = table[table.layer == 2]
    assert (induction.why.str.split(", ").str[0].str.contains("× 1.1")).all()
    plain = circuit.table()
    assert "why" not in plain
    assert table.drop(columns="why").equals(plain)


def test_every_edge_of_routes_says_it_too(trace):
    found = why_edges(routes(TEXT, threshold=0.1, **QUIET), TEXT, most=3, **QUIET)
    table = found.attention_edges()
    assert len(table) > 4
    for row in table.head(5).itertuples():
        facts = found.edges[(row.layer, row.key, "residual"), (row.layer, row.query, "attention")]
        check(of_edge(facts, row.head), row.why, row.layer, row.head, row.query, row.key, trace)


def test_how_many_pairs_are_named_is_chosen(circuit):
    found = why_edges(circuit, TEXT, most=1, **QUIET)
    assert (found.table()["why"].str.count("×") == 1).all()


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_it_is_kept_in_files(suffix, told, tmp_path):
    path = tmp_path / f"circuit.{suffix}"
    gattn.save(told, path)
    assert gattn.load(path).table()["why"].equals(told.table()["why"])


def test_networkx_writes_it(told, tmp_path):
    nx.write_gexf(nx.relabel_nodes(told, str), tmp_path / "circuit.gexf")
    assert "query_part_1" in (tmp_path / "circuit.gexf").read_text(encoding="utf-8")


def test_edges_of_cross_attention_are_left_alone():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).double().eval()
    given = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[2, 7]])}
    found = gattn.circuit(given, model, keep=0.7, units="heads", random=0, **QUIET)
    told = why_edges(found, given, model, **QUIET).table().set_index("stack")["why"]
    assert {"cross", "decoder"} <= set(told.index)
    assert told["cross"].isna().all()
    assert told.drop("cross").str.contains("×").all()


def test_another_text_or_run_is_refused(circuit):
    with pytest.raises(SelectionError, match="of other tokens than the text: it has 13"):
        why_edges(circuit, "the dog", **QUIET)
    model, tokenizer = gattn.load_model()
    with (
        gattn.edited(model, gattn.Scale(0.5, layer=0)),
        pytest.raises(SelectionError, match="of another run"),
    ):
        why_edges(circuit, TEXT, model, tokenizer, **QUIET)
    with pytest.raises(SelectionError, match="not DiGraph"):
        why_edges(nx.DiGraph(circuit), TEXT)
    with pytest.raises(SelectionError, match="most"):
        why_edges(circuit, TEXT, most=0)
