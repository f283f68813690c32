"""Matrices of one's own that are transposed, or a part of a square one, are told."""

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from gattn import AttentionGraph, AttentionTrace, TokenGraph

READS = {
    "trace": lambda A, **more: AttentionTrace.from_arrays(A[None, None], **more),
    "graph": lambda A, **more: AttentionGraph.from_dense(A, **more),
}


def attention(is_causal, queries=6, keys=6):
    torch.manual_seed(0)
    scores = torch.randn(queries, keys, dtype=torch.float64)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(queries, keys).tril().bool(), -torch.inf)
    return scores.softmax(-1).numpy()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_a_transposed_matrix_is_told(read, is_causal, dtype):
    A = attention(is_causal).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(A)
        read(np.eye(6)[::-1])  # a permutation: rows sum to 1 as well
    with pytest.warns(UserWarning, match=r"columns of the attention.* sum to 1, but its rows"):
        read(A.T.copy())


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_rows_of_causal_attention_are_told(read):
    A = attention(is_causal=True)
    for part, offset in ((A[:4], 0), (A[2:], 2), (A[-2:], 4)):
        rows = len(part)
        with pytest.warns(UserWarning, match=rf"looks like rows {offset} \.\. {offset + rows - 1}"):
            read(part)
        graph = TokenGraph.causal(rows, num_keys=6, query_offset=offset)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(part, graph=graph)
            read(part, graph=TokenGraph.bipartite(rows, 6))
            read(part, query_tokens=list("abcdef")[:rows])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(A[-1:])  # a step, or one query of others
        read(A[1:4])  # could be anything
        read(attention(is_causal=False)[:4])
        read(attention(is_causal=False, queries=3))


def test_advice_holds_for_whoever_is_given_it():
    """A sparse matrix takes no graph=; a list of edges says itself which way they run."""
    A = attention(is_causal=True)
    with pytest.warns(UserWarning, match=r"from_dense or AttentionTrace.from_arrays with graph="):
        AttentionGraph.from_scipy(scipy.sparse.csr_array(A[2:]))
    with pytest.warns(UserWarning, match="if so, swap queries and keys"):
        AttentionGraph.from_scipy(scipy.sparse.csr_array(A.T))
    key, query = A.T.nonzero()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttentionGraph.from_edges([query, key], A[query, key] / 2, num_tokens=6)
