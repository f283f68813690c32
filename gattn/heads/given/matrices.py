"""One's own numbers: sparse matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gattn.errors import ShapeError
from gattn.heads.given.edge_lists import Duplicates, from_edges, texts

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph


def from_scipy(
    cls: type[AttentionGraph],
    /,
    matrix: Any,
    tokens: Sequence[str] = (),
    *,
    query_tokens: Sequence[str] = (),
    duplicates: Duplicates = "error",
    **attributes: Any,
) -> AttentionGraph:
    """Read a sparse matrix A, where ``A[i, j]`` is the attention of query i to key j.

    Rows are queries, as in `to_scipy` and `from_dense`. A matrix whose rows are sources, as
    SciPy's and NetworkX's graph functions have it, is the transpose: pass ``matrix.T``. Every
    stored entry is an edge, zeros too: ``matrix.eliminate_zeros()`` removes them.

    Parameters
    ----------
    matrix : sparse array or matrix (queries, keys)
        Of any format of SciPy.
    tokens : sequence of str
        The tokens' texts (of the keys, in cross-attention).
    query_tokens : sequence of str
        The queries' texts. Queries and keys are different tokens if these are given, or if the
        matrix is not square.
    duplicates : "error" or "sum"
        Whether an entry stored several times, as the COO format allows, is an error or summed.
    **attributes
        Further fields of `AttentionGraph`, such as ``layer`` and ``head``.

    Raises
    ------
    ShapeError
        If it is not a sparse matrix of real numbers, or the tokens do not fit it.
    GraphError
        If an entry is stored twice.
    CaptureError
        If a number is not finite.

    Examples
    --------
    >>> A = scipy.sparse.csr_array([[1.0, 0.0], [0.3, 0.7]])
    >>> AttentionGraph.from_scipy(A, ["the", "dog"]).graph.edge_index.tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    from scipy import sparse

    is_sparse: bool = sparse.issparse(matrix)
    if not is_sparse or len(matrix.shape) != 2:
        raise ShapeError(
            "from_scipy takes a sparse matrix of SciPy (queries, keys), not a "
            f"{type(matrix).__name__} {tuple(np.shape(matrix))}; from_dense takes a dense one, and "
            "from_edges the edges of any library."
        )
    queries, keys = matrix.shape
    query_tokens = texts(query_tokens, "query_tokens")
    is_bipartite = bool(query_tokens) or queries != keys
    sizes = {"num_queries": queries, "num_keys": keys} if is_bipartite else {"num_tokens": keys}
    listed = matrix.tocoo()
    return from_edges(
        cls,
        np.stack([listed.col, listed.row]).astype(np.int64),
        listed.data,
        tokens,
        query_tokens=query_tokens,
        duplicates=duplicates,
        **sizes,
        **attributes,
    )
