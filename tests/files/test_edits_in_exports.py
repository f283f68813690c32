"""Exports for other tools name the edits of the run."""

import dataclasses
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import gattn

HEAD = gattn.AttentionGraph.from_dense(np.eye(3), tokens=["a", "b", "c"], layer=1, head=0)
EDITED = dataclasses.replace(
    HEAD, edits=(gattn.Cut(layer=1, head=1), gattn.Scale(layer=0, factor=2))
)
SAID = "Cut(layer=1, head=1)"


@pytest.mark.parametrize("suffix", [".gexf", ".csv", ".dot", ".json", ".graphml"])
def test_every_file_of_a_head_names_the_edits(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"head{suffix}"
    EDITED.save(path)
    assert SAID in path.read_text(encoding="utf-8")
    HEAD.save(path)
    assert "Cut" not in path.read_text(encoding="utf-8")


def test_a_table_has_a_column_of_edits_only_if_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "head.csv"
    EDITED.save(path)
    assert set(pd.read_csv(path)["edits"]) == {"Cut(layer=1, head=1); Scale(factor=2, layer=0)"}
    HEAD.save(path)
    assert "edits" not in pd.read_csv(path)


def test_a_graph_with_edits_of_another_program_is_written(tmp_path: Path) -> None:
    graph = nx.DiGraph([(0, 1, {"weight": 0.5})], edits="mine")
    for suffix in (".csv", ".gexf"):
        path = tmp_path / f"graph{suffix}"
        gattn.save(graph, path)
        assert "mine" in path.read_text(encoding="utf-8")
