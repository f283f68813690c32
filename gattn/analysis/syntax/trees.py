"""Syntax: the word that each word reads most, and the tree of words with the most attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.heads import graphs_of
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Graph, Table, column, told_in_graph
from gattn.analysis.syntax.words import Matrix, words_of
from gattn.errors import SelectionError
from gattn.progress import walk

Direction: TypeAlias = Literal["dependent_to_head", "head_to_dependent"]


class Tree(Graph):
    """A tree of words, whose edges run from head to dependent; see `arborescence`."""


class BestEdges(Table):
    """The best edges of words in every head; see `best_edges`."""


def best_edges(
    attention: Attention, *, tokens: Sequence[str] = (), progress: bool = True
) -> BestEdges:
    """Find the word that each word reads most, and the word that reads it most, in every head.

    Tokens are merged into words if the graph knows them: columns are summed, rows averaged. A
    word's attention to itself does not count, and special tokens are not words.

    Parameters
    ----------
    attention : Attention
        Whatever holds it.
    tokens : sequence of str
        The texts of an array's tokens.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    BestEdges
        By ``layer``, ``head`` and ``word``: its ``token``; ``key``, ``key_token`` and
        ``key_attention`` of the word that it reads most; and ``query``, ``query_token`` and
        ``query_attention`` of the word that reads it most. Missing if nothing is read.

    Raises
    ------
    SelectionError, ShapeError
        If it is not self-attention, or is negative.

    References
    ----------
    Clark et al. (2019), What does BERT look at?
    """
    layers = layers_of(attention, tokens).square()
    graphs = graphs_of(layers)
    words = words_of(graphs[0])
    texts = np.array(words.texts, dtype=object)
    parts = []
    for graph in walk(graphs, "best edges", "head", progress=progress):
        (matrix,) = words.matrix(graph.to_dense()[None].astype(np.float64))
        part: dict[str, Any] = {"layer": graph.layer or 0, "head": graph.head or 0}
        part |= {"word": range(len(texts)), "token": column(texts)}
        for side, values in (("key", matrix), ("query", matrix.T)):
            other = largest(values)
            there = other >= 0
            part[side] = pd.Series(other, dtype="Int64").mask(~there)
            part[f"{side}_token"] = column(texts[other]).where(there, None)
            found = values[np.arange(len(texts)), other]
            part[f"{side}_attention"] = np.where(there, found, np.nan)
        parts.append(pd.DataFrame(part))
    rows = pd.concat(parts, ignore_index=True)
    index = ["layer", "head", "word"]
    return layers.table(BestEdges, rows, index, "best edges", _notes(layers))


def arborescence(
    attention: Attention, direction: Direction = "dependent_to_head", *, tokens: Sequence[str] = ()
) -> Tree:
    r"""Find the tree of words with the most attention: its maximum spanning arborescence.

    Each word but the root has one head, there are no cycles, and the sum of attention along the
    edges is the largest possible. Causal attention points back alone, so that the first word is the
    root, and each word's best edge is in the tree; otherwise it takes Edmonds' algorithm.

    Parameters
    ----------
    attention : Attention
        One head.
    tokens : sequence of str
        The texts of an array's tokens.
    direction : str
        Whose attention makes an edge: "dependent_to_head", a word reads its head, or
        "head_to_dependent", a head reads its dependents.

    Returns
    -------
    Tree
        A `networkx.DiGraph` on words from 0, with ``token``; edges run from head to dependent, with
        ``weight``. If not all words are reached, it is a forest, and `notes` say so.

    Raises
    ------
    SelectionError
        If there are several heads, it is not self-attention, or there is no such direction.
    ShapeError
        If attention is negative.

    References
    ----------
    Edmonds (1967), Optimum branchings. Raganato and Tiedemann (2018), An analysis of encoder
    representations in transformer-based machine translation.
    """
    if direction not in get_args(Direction):
        raise SelectionError(f"direction is one of {get_args(Direction)}, not {direction!r}.")
    layers = layers_of(attention, tokens).square()
    heads = graphs_of(layers)
    if len(heads) != 1:
        raise SelectionError(
            f"arborescence takes one head, as in trace[1, 3], but there are {len(heads)}."
        )
    words = words_of(heads[0])
    (matrix,) = words.matrix(layers.read(0).double().cpu().numpy())
    parents = tree_heads(matrix if direction == "dependent_to_head" else matrix.T)
    tree = Tree()
    for n, token in enumerate(words.texts):
        tree.add_node(n, token=token, position=n)
    for dependent, parent in enumerate(parents.tolist()):
        if parent >= 0:
            value = (dependent, parent) if direction == "dependent_to_head" else (parent, dependent)
            tree.add_edge(parent, dependent, weight=float(matrix[value]))
    roots = int((parents < 0).sum())
    notes = [*_notes(layers), *layers.mass_notes()]
    if roots > 1:
        notes.append(f"a forest of {roots} trees: no word reaches all others over kept edges")
    tree.graph |= {
        "computed_from": str(layers.read_from),
        "notes": "\n".join(notes),
        "direction": direction,
        **told_in_graph(layers.read_from.edits),
    }
    return tree


def tree_heads(matrix: Matrix) -> NDArray[np.int64]:
    """Return each word's head in the maximum spanning arborescence, -1 for a root.

    Parameters
    ----------
    matrix : array (words, words)
        How much word i gives to word j as its head; 0 without an edge.
    """
    for one in (matrix, matrix[::-1, ::-1]):
        if not np.triu(one).any():  # No cycles, so that the best edges are a tree.
            return largest(matrix)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(matrix)))
    dependent, parent = matrix.nonzero()
    weights = matrix[dependent, parent]
    graph.add_weighted_edges_from(
        zip(parent.tolist(), dependent.tolist(), weights.tolist(), strict=True)
    )
    try:
        tree = nx.maximum_spanning_arborescence(graph)
    except nx.NetworkXException:
        tree = nx.maximum_branching(graph)
    heads = np.full(len(matrix), -1)
    for head, word in tree.edges():
        heads[word] = head
    return heads


def largest(matrix: Matrix) -> NDArray[np.int64]:
    """Find the largest entry of each row, -1 if it is empty."""
    if not matrix.size:
        return np.full(len(matrix), -1)
    return np.where(matrix.any(-1), matrix.argmax(-1), -1)


def _notes(layers: Layers) -> list[str]:
    is_causal = all(not bool(layers.read(n).triu(1).any()) for n in range(len(layers)))
    return ["causal: a word reads no later ones"] if is_causal else []
