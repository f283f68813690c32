"""What the file tests damage, and files with good checksums and bad content."""

import json
from dataclasses import fields
from hashlib import sha256

import networkx as nx
import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from gattn.files import packing
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK

WORDS = ("The", " dog", " chased", " the", " cat", ".")


def sample_head(tokens=WORDS, **attributes) -> AttentionGraph:
    """A causal head of all edges, with scores and a sink."""
    size = len(tokens)
    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(size))
    graph = TokenGraph.causal(size)
    attention = scores.masked_fill(~graph.mask(), -torch.inf).softmax(-1)
    key, query = graph.edge_index
    return AttentionGraph.from_dense(
        attention,
        graph,
        tokens=tuple(tokens),
        **{
            "score": scores[query, key].numpy(),
            "sink": np.linspace(0, 0.5, size, dtype=np.float32),
            "layer": 1,
            "head": 2,
            "model": "toy",
        }
        | attributes,
    )


def kept_head() -> AttentionGraph:
    return sample_head().keep(TopK(2))


def sample_trace() -> AttentionTrace:
    heads = {(0, 0): sample_head(layer=0, head=0), (0, 1): kept_head()}
    cross = AttentionGraph.from_dense(
        np.full((2, 3), 1 / 3),
        TokenGraph.bipartite(2, 3),
        tokens=WORDS[:3],
        query_tokens=WORDS[3:5],
    )
    stacks = {"decoder": Stack("decoder", heads), "cross": Stack("cross", {(0, 0): cross})}
    return AttentionTrace(stacks, "toy", generated=1, text="The dog")


def same(one, other) -> bool:
    """Whether two things that were saved and loaded are equal, bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, AttentionGraph):
        return all(_same_field(one, other, field.name) for field in fields(one))
    if isinstance(one, AttentionTrace):
        return (one.model, one.generated, one.text) == (
            other.model,
            other.generated,
            other.text,
        ) and _same_stacks(one.stacks, other.stacks)
    return (
        list(one.nodes(data=True)) == list(other.nodes(data=True))
        and sorted(one.edges(data=True), key=repr) == sorted(other.edges(data=True), key=repr)
        and one.graph == other.graph
    )


def _same_stacks(one, other) -> bool:
    return list(one) == list(other) and all(
        stack.name == other[name].name
        and list(stack) == list(other[name])
        and all(same(stack[place], other[name][place]) for place in stack)
        for name, stack in one.items()
    )


def _same_field(one, other, name) -> bool:
    left, right = getattr(one, name), getattr(other, name)
    if isinstance(left, TokenGraph):
        sizes = left._size == right._size
        return sizes and torch.equal(left.edge_index, right.edge_index)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        if left is None or right is None:
            return False
        return (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())
    return bool(left == right)


def unrolled() -> nx.DiGraph:
    """A graph with ids that are tuples."""
    return sample_trace()["decoder"].unroll()


def dismantled(path):
    """Give the document and the arrays of a .gattn file."""
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["gattn"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del document["checksum"]
    return document, arrays


def assemble(path, document, arrays, text=None) -> None:
    """Write a .gattn file with good checksums, whatever it says; `text` is its JSON text."""
    if text is None:
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        text = json.dumps(document | {"checksum": sha256(canonical.encode()).hexdigest()})
    save_file(arrays, path, {"gattn": text})


def added(arrays, array) -> str:
    """Add an array under its checksum; give its name."""
    array = np.ascontiguousarray(array)
    name = packing.digest_of(array)
    arrays[name] = array
    return name
