"""Graph attention as a torch-geometric layer: projections and wiring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch_geometric.nn import Linear

from gattn.attention import attention_graphs
from gattn.checks import whole
from gattn.engines.call import AttentionCall, EdgeList, naming_shapes
from gattn.engines.message_passing import EdgeAttention
from gattn.engines.watching import watched
from gattn.errors import ContractError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import GRAPH
from gattn.keep import Keep
from gattn.module import layer_calls
from gattn.module.from_torch import from_torch
from gattn.module.given_edges import Fill, as_fill
from gattn.module.node_features import Features, linear, sides_of, size_of, sizes_of
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import as_normalizer
from gattn.weights.base import PairFunction, WeightFunction, as_weight_function
from gattn.weights.dot import ScaledDotProduct


class GraphAttention(EdgeAttention):
    r"""Multi-head attention on a graph, as a torch-geometric message passing layer.

    .. math::
        o_i = \Bigl[\sum_{j \in N(i)} A^h_{ij} \bigl(W^h_V x_j + W^h_E e_{ij}\bigr)\Bigr]_h
        \qquad A^h_{ij} = \operatorname*{normalizer}_{j \in N(i)}
        w\bigl(W^h_Q x_i, W^h_K x_j + W^h_E e_{ij}\bigr)

    By default it is torch-geometric's ``TransformerConv`` without the root's own term. Targets
    are queries; sources are keys. It uses message passing if an explainer or a hook looks at its
    messages or a subclass changes them, and otherwise the fastest engine that gives the same
    numbers.

    Parameters
    ----------
    in_channels : int or tuple
        Size of the nodes' features: an int; or those of (sources, targets), and of values if they
        are not made of the sources' features. -1 takes the size of the first input.
    out_channels : int
        Size of each head's output.
    heads : int
        Number of heads.
    concat : bool
        Whether the heads' outputs are concatenated, else averaged.
    weight : WeightFunction or callable, optional
        What an edge scores; the scaled dot product by default.
    normalizer : Normalizer, optional
        How a neighbourhood's scores become attention; softmax by default.
    edge_dim : int, optional
        Number of features per edge that are projected and added to its key and value. Without it,
        only the weight function reads features, such as `EdgeBias`.
    add_self_loops : bool
        Whether each node's self-loops are replaced by one that is added, as in ``GATConv``.
    fill_value : float, Tensor or str
        Features of added self-loops: numbers, or how those of a node's in-edges are reduced
        ("mean", "add", "min", "max", "mul").
    residual : bool
        Whether to add a projection of the target's features, :math:`W_R x_i`.
    project_output : bool
        Whether to project the heads' joint output, :math:`W_O`, as transformers do.
    bias : bool
        Whether the projections of nodes have a bias.
    dropout : float
        The share of the attention dropped in training.
    engine, compile
        As in `graph_attention`.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need.

    Shi et al. (2021), Masked label prediction: unified message passing model for semi-supervised
    classification.

    Examples
    --------
    >>> layer = GraphAttention(16, 8, heads=4)
    >>> x, edge_index = torch.randn(3, 16), torch.tensor([[0, 1, 1], [1, 2, 0]])
    >>> layer(x, edge_index).shape
    torch.Size([3, 32])
    >>> out, (edge_index, alpha) = layer(x, edge_index, return_attention_weights=True)
    >>> alpha.shape
    torch.Size([3, 4])

    A token graph is a graph, too, and may have a batch of sequences as its nodes:

    >>> layer(torch.randn(2, 5, 16), TokenGraph.causal(5)).shape
    torch.Size([2, 5, 32])
    """

    from_torch = classmethod(from_torch)

    def __init__(
        self,
        in_channels: int | tuple[int, ...],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        *,
        weight: WeightFunction | PairFunction | None = None,
        normalizer: Normalizer | None = None,
        edge_dim: int | None = None,
        add_self_loops: bool = False,
        fill_value: Fill = "mean",
        residual: bool = False,
        project_output: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        engine: str | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        source, target, value = sizes_of(in_channels)
        self.in_channels = in_channels
        self.out_channels = whole("out_channels", out_channels, 1, ShapeError)
        self.heads, self.concat = whole("heads", heads, 1, ShapeError), concat
        if not 0 <= dropout <= 1:
            raise ShapeError(f"dropout must be a share from 0 to 1, not {dropout!r}.")
        self.edge_dim = None if edge_dim is None else size_of("edge_dim", edge_dim)
        self.add_self_loops, self.fill_value = add_self_loops, as_fill(fill_value)
        self.dropout, self.engine, self.compile_weight = dropout, engine, compile
        self.weight = ScaledDotProduct() if weight is None else as_weight_function(weight)
        self.normalizer = Softmax() if normalizer is None else as_normalizer(normalizer)
        dims = self.heads * self.out_channels
        total = dims if concat else self.out_channels
        self.project_query = linear(target, dims, bias)
        self.project_key = linear(source, dims, bias)
        self.project_value = linear(value, dims, bias)
        self.project_edge = None if self.edge_dim is None else linear(self.edge_dim, dims, False)
        self.project_output = linear(total, total, bias) if project_output else None
        self.project_residual = linear(target, total, bias) if residual else None

    def reset_parameters(self) -> None:
        """Initialise all projections again (Xavier uniform, biases zero)."""
        super().reset_parameters()
        for projection in self.children():
            if isinstance(projection, Linear):
                projection.reset_parameters()

    def forward(
        self,
        x: Features,
        edge_index: TokenGraph | Tensor,
        edge_attr: Tensor | None = None,
        *,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend.

        Parameters
        ----------
        x : Tensor or tuple of Tensor
            The nodes' features, (nodes, channels) or (batch, nodes, channels); or those of
            (sources, targets), and of values if they are not made of the sources' features.
        edge_index : Tensor or TokenGraph
            Who may attend to whom. An ``edge_index = [source; target]`` keeps its order and its
            duplicates. A `torch.sparse` adjacency has a row per target, as ``data.adj_t``; its
            values are features if they have two dimensions, and are not read otherwise.
        edge_attr : Tensor, optional
            Shape (edges, features) or (edges,), in the order of the edges; or (targets, sources,
            features).
        return_attention_weights : bool, optional
            Whether to return the attention, too.

        Returns
        -------
        Tensor or (Tensor, (Tensor, Tensor))
            Shape (..., targets, heads * out_channels), or out_channels without `concat`; and
            ``(edge_index, alpha)``: the edges with all self-loops that were added, and their
            attention before dropout, (..., edges, heads). For a sparse adjacency, the first is an
            adjacency with these values.

        Raises
        ------
        ShapeError
            If features, edges and layer do not fit each other.
        ContractError
            If the weight function or normalizer breaks its contract, if nothing reads `edge_attr`,
            or if attention weights are asked for that an open `edited` changes.
        """
        sides = sides_of(x)
        given = layer_calls.given_to(self, sides, edge_index, edge_attr)
        call, lead = layer_calls.call_of(self, sides, given)
        if self.is_looked_at and lead:
            raise ShapeError(
                "Explainers and hooks look at one graph at a time: pass (nodes, channels), "
                f"not a batch {tuple(sides[1].shape)}; batch graphs as a disjoint union."
            )
        ran: list[tuple[Tensor, Tensor | None]] = []

        def run(some: AttentionCall) -> Tensor:
            with naming_shapes(some):
                engine = self.engine if some is call else None
                if return_attention_weights:
                    output, alpha = layer_calls.weighed(self, some, engine)
                    # An edited call may have other edges than those that are returned.
                    ran.append((output, alpha if some.graph is call.graph else None))
                    return output
                return layer_calls.computed(self, some, engine)

        output = watched(self, call, run)
        joined = self._joined(output if lead else output.squeeze(0), sides[1])
        if not return_attention_weights:
            return joined
        alpha = next((alpha for its, alpha in ran if its is output), None)
        if alpha is None:
            raise ContractError(
                f"{self!r} cannot return its attention weights while an edit changes them: read "
                "them from gattn.capturing(model)."
            )
        alpha = alpha.reshape(*lead, *alpha.shape[1:]).transpose(-2, -1)
        return joined, given.with_weights(alpha.to(output.dtype))

    def graphs(
        self,
        x: Features,
        edge_index: TokenGraph | Tensor,
        edge_attr: Tensor | None = None,
        *,
        keep: Keep | None = None,
        scores: bool = False,
        tokens: Sequence[str] = (),
        query_tokens: Sequence[str] = (),
    ) -> list[AttentionGraph]:
        """Compute the attention graph of each head; see `attention_graphs`.

        On an edge_index or a sparse adjacency they are of the stack "graph", whose points are
        called nodes, as in a trace.

        Raises
        ------
        ShapeError
            If an edge is doubled, besides the errors of the layer itself.
        """
        sides = sides_of(x)
        given = layer_calls.given_to(self, sides, edge_index, edge_attr)
        call, lead = layer_calls.call_of(self, sides, given)
        graph, features = replace(given, features=call.edge_features).as_token_graph()
        heads = attention_graphs(
            call.query.reshape(*lead, *call.query.shape[1:]),
            call.key.reshape(*lead, *call.key.shape[1:]),
            graph,
            weight=call.weight,
            normalizer=self.normalizer,
            edge_features=features,
            keep=keep,
            scores=scores,
            tokens=tokens,
            query_tokens=query_tokens,
            engine=self.engine if self.engine in ("tiles", "edges") else None,
            compile=self.compile_weight,
        )
        is_of_data = isinstance(given.graph, EdgeList) and not graph.is_bipartite
        return [replace(head, stack=GRAPH) for head in heads] if is_of_data else heads

    def _joined(self, output: Tensor, target: Tensor) -> Tensor:
        """Join the heads' outputs (..., H, Q, V)."""
        each = output.transpose(-3, -2)
        joined = each.flatten(-2) if self.concat else each.mean(-2)
        if self.project_output is not None:
            joined = self.project_output(joined)
        if self.project_residual is not None:
            joined = joined + self.project_residual(target)
        return joined

    def __repr__(self) -> str:
        parts = [str(self.in_channels), str(self.out_channels), f"heads={self.heads}"]
        for name, part, usual in (
            ("weight", self.weight, ScaledDotProduct()),
            ("normalizer", self.normalizer, Softmax()),
        ):
            if repr(part) != repr(usual):
                parts.append(f"{name}={part!r}")
        return f"{type(self).__name__}({', '.join(parts)})"
