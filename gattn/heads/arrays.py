"""Arrays of attention as attention graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from gattn.edit_records import from_identity
from gattn.errors import GattnError, GraphError, SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.fields import from_dense
from gattn.heads.given.edge_lists import texts
from gattn.heads.given.labelled import Labelled, is_labelled, read_labelled
from gattn.heads.given.layers import check_layer, layers_in
from gattn.heads.given.weights import warn_of_forms, warn_of_weights
from gattn.heads.head import AttentionGraph
from gattn.heads.merging import unless_counted
from gattn.heads.stack import Stack
from gattn.keep import All, Keep, as_keep

if TYPE_CHECKING:
    from gattn.heads.trace import AttentionTrace

Texts: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
"""The texts of tokens, of all stacks or by stack."""


def from_arrays(
    cls: type[AttentionTrace],
    attention: Any,
    tokens: Texts = (),
    *,
    query_tokens: Texts = (),
    graph: TokenGraph | Mapping[str, TokenGraph] | None = None,
    keep: Keep = All(),  # noqa: B008
    stack: str = "attention",
    model: str = "",
) -> AttentionTrace:
    """Read arrays of attention, such as a model's own ``attentions``.

    An array cannot tell an edge of attention 0 from a missing edge. Without `graph`, every
    token may attend to all tokens; or, if no head of any layer attends to a later token, to
    all up to itself. Zeros among these are edges of attention 0. If that is wrong, as with a
    sliding window or padding, pass `graph`. It only matters to what counts edges, or compares
    with even attention.

    Parameters
    ----------
    attention : array or Tensor (layers, heads, queries, keys), list of layers, or mapping
        ``attention[l, h, i, j]`` is the attention of query i to key j. Layers in a list are
        (heads, queries, keys), or (1, heads, queries, keys) as in a model's ``attentions``; their
        numbers of heads may differ. Labelled arrays (`xarray.DataArray`) keep their numbers of
        layers and heads, positions, tokens (``key_token``, ``query_token``) and edits. Several
        stacks are a mapping of their names to such arrays, as in ``{"encoder": ..., "cross":
        ...}``.
    tokens : sequence of str, or mapping of stack to these
        The tokens' texts (of the keys, if `query_tokens` are given).
    query_tokens : sequence of str, or mapping of stack to these
        The queries' texts, in cross-attention.
    graph : TokenGraph, or mapping of stack to these, optional
        Who may attend to whom. Without it, queries and keys are different tokens if their
        numbers differ or `query_tokens` are given; a decoding step is
        ``TokenGraph.causal(1, num_keys=n, query_offset=n - 1)``.
    keep : Keep
        Which edges to keep; all by default.
    stack : str
        The name of the stack of layers, if there is one.
    model : str
        The model's name.

    Raises
    ------
    ShapeError
        If the array has another shape or holds a batch, a number is not finite, or labels cannot
        be kept.
    GraphError
        If there is attention that `graph` does not allow.
    SelectionError
        If tokens or graphs are given for a stack that is not there.

    Warns
    -----
    UserWarning
        If a weight is negative, or the weights of a query sum to more than 1, as scores do: take
        their softmax first. Other weights are kept, and called weights. Also if columns sum to 1 in
        place of rows, or what is read as cross-attention looks like some rows of causal attention.

    Examples
    --------
    >>> trace = AttentionTrace.from_arrays([[[[1.0, 0.0], [0.3, 0.7]]]], tokens=["the", "dog"])
    >>> trace[0, 0]
    AttentionGraph(layer 0, head 0, 2 tokens, 3 edges, keep=All(), 100.0 % of the attention)
    """
    if hint := _of_output(attention):
        raise ShapeError(hint)
    keep = as_keep(keep)
    is_named = isinstance(attention, Mapping)
    given: Mapping[str, Any] = attention if is_named else {stack: attention}
    options = {"tokens": tokens, "query_tokens": query_tokens, "graph": graph}
    by_stack = _by_stack(given, options, shared={"tokens", "graph"} if is_named else set(options))
    stacks = {}
    for name, arrays in given.items():
        try:
            heads = heads_from(arrays, **by_stack[name], keep=keep, model=model)
        except GattnError as error:
            if not is_named:
                raise
            raise type(error)(f"Stack {name!r}: {error}") from error
        stacks[name] = Stack(name, heads)
    own = {name: one for name, one in stacks.items() if not is_labelled(given[name])}
    warn_of_weights((head for one in own.values() for head in one.values()), of_sums=True)
    for name, one in own.items():
        warn_of_forms(one.values(), has_graph=by_stack[name].get("graph") is not None)
    return cls(stacks, model)


def _by_stack(
    given: Mapping[str, Any], options: Mapping[str, Any], shared: set[str]
) -> dict[str, dict[str, Any]]:
    """Say what each stack gets of the options: its own, or what all of them share."""
    if not given or not all(isinstance(name, str) for name in given):
        raise ShapeError(
            "Several stacks are a mapping of their names to arrays, as in "
            f'{{"encoder": arrays, "cross": arrays}}, not of {list(given)!r:.80}.'
        )
    found: dict[str, dict[str, Any]] = {name: {} for name in given}
    for option, value in options.items():
        if isinstance(value, Mapping):
            if unknown := sorted(set(value) - set(given)):
                raise SelectionError(
                    f"{option} names the stack {unknown[0]!r}; there are {sorted(given)}."
                )
            for name in set(value) & set(given):
                found[name][option] = value[name]
        elif option in shared:
            for one in found.values():
                one[option] = value
        elif len(value):
            raise SelectionError(
                f"Of several stacks, say which has these {option}, as in "
                f"{option}={{{list(given)[-1]!r}: [...]}}."
            )
    return found


def _of_output(attention: Any) -> str:
    """Say what to pass of a model's output."""
    kind = type(attention).__name__
    if attention is None:
        return (
            "There is no attention. A model returns it with output_attentions=True, loaded with "
            'attn_implementation="eager"; gattn.capture needs neither.'
        )
    if hasattr(attention, "attentions"):
        return f"Pass the .attentions of the {kind}."
    if hasattr(attention, "encoder_attentions"):
        return (
            f'Pass the stacks of the {kind} output, as in {{"encoder": output.encoder_attentions, '
            '"decoder": output.decoder_attentions, "cross": output.cross_attentions}.'
        )
    return ""


def heads_from(
    attention: Any,
    tokens: Sequence[str] = (),
    *,
    query_tokens: Sequence[str] = (),
    graph: TokenGraph | None = None,
    keep: Keep,
    model: str,
) -> dict[tuple[int, int], AttentionGraph]:
    """Build the heads of a stack, by (layer, head); see `from_arrays`."""
    if graph is not None and not isinstance(graph, TokenGraph):
        raise GraphError(
            f"graph must be a TokenGraph, such as TokenGraph.causal(5), not {graph!r}."
        )
    tokens, query_tokens = texts(tokens, "tokens"), texts(query_tokens, "query_tokens")
    labels = read_labelled(attention) if is_labelled(attention) else None
    layers = list(layers_in(attention if labels is None else labels.numbers))
    for n, layer in enumerate(layers):
        check_layer(layer, n, layers[0])
    names: dict[str, Any] = {"tokens": tokens, "query_tokens": query_tokens}
    if graph is None:
        is_bipartite = bool(query_tokens) or (labels is not None and not labels.is_square)
        graph = _graph_of(layers, is_bipartite=is_bipartite)
    graph = graph.to("cpu").sorted()
    if labels is not None:
        names = _names_of(labels, graph, names)
    heads = {}
    for n, layer in enumerate(layers):
        for h, matrix in enumerate(layer):
            place = (n, h) if labels is None else (labels.layers[n], labels.heads[h])
            heads[place] = _head(
                matrix, graph, keep, layer=place[0], head=place[1], model=model, **names
            )
    return heads


def _names_of(labels: Labelled, graph: TokenGraph, given: dict[str, Any]) -> dict[str, Any]:
    """Return what heads keep of an array's labels, and refuse what they cannot keep."""
    if labels.holds_residual:
        raise ShapeError(
            "This array includes the residual stream, which a trace cannot hold: pass the array "
            "itself to the analyses."
        )
    found = {"tokens": labels.key_tokens, "query_tokens": labels.query_tokens}
    for name, side in (("tokens", "key"), ("query_tokens", "query")):
        if given[name] and found[name]:
            raise ShapeError(f"The array names its tokens, as {side}_token: leave out {name}=.")
    names = {name: given[name] or some for name, some in found.items()}
    places: dict[str, Any] = {
        "positions": unless_counted(np.array(labels.keys)),
        "edits": tuple(map(from_identity, labels.edits)),
        "geometry": labels.geometry,
    }
    if graph.is_bipartite:
        of_queries = {
            "query_positions": unless_counted(np.array(labels.queries)),
            "query_geometry": labels.query_geometry,
        }
        return places | names | of_queries
    start, stop = graph.query_offset, graph.query_offset + len(labels.queries)
    queries, keys = labels.queries, labels.keys
    if labels.is_square and not names["tokens"]:
        names["tokens"] = names["query_tokens"]
    rows = names["tokens"][start:stop]
    if keys[start:stop] != queries or (names["query_tokens"] or rows) != rows:
        raise ShapeError(
            "The labels of query and key are of different tokens: if that is so, pass graph="
            f"TokenGraph.bipartite({len(queries)}, {len(keys)})."
        )
    return places | {"tokens": names["tokens"]}


def _head(matrix: Tensor, graph: TokenGraph, keep: Keep, **attributes: Any) -> AttentionGraph:
    head = from_dense(AttentionGraph, matrix, graph, **attributes)
    dense = matrix.cpu().numpy()
    if np.count_nonzero(dense) > np.count_nonzero(head.attention):
        query, key = np.argwhere((dense != 0) & (head.to_dense() == 0))[0].tolist()
        raise GraphError(
            f"Layer {head.layer}, head {head.head} has attention {dense[query, key]:.3g} of query "
            f"{query} to key {key}, where {graph} has no edge: give the token graph of the model."
        )
    return head if isinstance(keep, All) else head.keep(keep)


def _graph_of(layers: Sequence[Tensor], *, is_bipartite: bool) -> TokenGraph:
    """Return who may attend: a causal graph if no head of any layer attends to a later token."""
    if not layers:
        raise ShapeError("There are no layers.")
    queries, keys = layers[0].shape[1:]
    if is_bipartite or queries != keys:
        return TokenGraph.bipartite(queries, keys)
    ahead = any(bool(layer.triu(1).any()) for layer in layers)
    return TokenGraph.complete(keys) if ahead else TokenGraph.causal(keys)
