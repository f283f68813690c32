import ast
import inspect
from pathlib import Path

import networkx as nx
import torch

import gattn

CONCEPTS = (gattn.Edit, gattn.Keep, gattn.Normalizer, gattn.WeightFunction)
NOUNS = {
    "AttentionGraph",
    "AttentionTrace",
    "CaptureGraphs",
    "GraphAttention",
    "Pairs",
    "RayPool",
    "Survey",
    "TokenGraph",
}
FEATURE_MAPS = {"PerformerFeatures"}


def test_every_public_name_is_a_concept_of_the_glossary():
    for name in gattn.__all__:
        thing = getattr(gattn, name)
        if inspect.isclass(thing):
            is_concept = issubclass(thing, CONCEPTS) or name in NOUNS | FEATURE_MAPS
            assert is_concept, f"{name} is none of the glossary's words"
        else:
            assert inspect.isfunction(thing), name
        assert inspect.getdoc(thing), f"{name} has no docstring"


def test_glossary_names_the_concepts():
    words = (
        "TokenGraph",
        "WeightFunction",
        "Normalizer",
        "AttentionGraph",
        "AttentionTrace",
        "Survey",
    )
    for word in words:
        assert f"`{word}`" in (gattn.__doc__ or ""), word


def test_the_three_lists_of_public_names_agree():
    tree = ast.parse(Path(gattn.__file__).read_text())
    typed = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "gattn"
        for alias in node.names
    }
    homes = {name: home for home, names in gattn._HOMES.items() for name in names}
    assert typed == homes
    assert sorted(gattn.__all__) == sorted(homes)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(gattn, "attention_of_the_gaps")


def test_scores_and_attention_are_both_graphs_that_can_be_exported(tmp_path):
    query, key = torch.randn(2, 1, 4, 3, dtype=torch.float64)
    graph = gattn.TokenGraph.complete(4)
    for normalizer, expected in (
        (gattn.Identity(), query[0] @ key[0].T / 3**0.5),
        (gattn.Softmax(), torch.softmax(query[0] @ key[0].T / 3**0.5, -1)),
    ):
        head = gattn.attention_graphs(query, key, graph, normalizer=normalizer)[0]
        network = head.to_networkx()
        adjacency = nx.to_numpy_array(network, nodelist=range(4))
        torch.testing.assert_close(torch.from_numpy(adjacency.T), expected)
        head.save(tmp_path / "head.graphml")
        again = gattn.load(tmp_path / "head.graphml")
        assert (again.to_dense() == head.to_dense()).all()
