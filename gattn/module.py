"""Graph attention as a torch-geometric module: projections and wiring."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn

from gattn.attention import attention_graphs
from gattn.engines import message_passing
from gattn.engines.call import AttentionCall, attention_call, naming_shapes
from gattn.engines.choice import choose, named
from gattn.engines.edge_list import EdgeList
from gattn.engines.message_passing import EdgeAttention
from gattn.engines.watching import watched
from gattn.errors import ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.keep import Keep
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import as_normalizer
from gattn.weights.base import PairFunction, WeightFunction, as_weight_function
from gattn.weights.dot import ScaledDotProduct

_HOOKS = tuple(
    f"_{step}_forward{when}_hooks"
    for step in ("propagate", "message", "aggregate")
    for when in ("_pre", "")
)


class GraphAttention(EdgeAttention):
    r"""Multi-head attention over a token graph, as a torch-geometric message passing layer.

    .. math::
        o_i = W_O \bigl[\sum_{j \in N(i)} A^h_{ij} W^h_V x_j\bigr]_h + b_O

    It uses message passing if an explainer or a hook looks at its messages or a subclass changes
    them, and otherwise the fastest engine that gives the same numbers.

    Parameters
    ----------
    channels : int
        Size of the queries' features and of the output.
    num_heads : int
        Number of heads; each has ``channels // num_heads`` dimensions.
    weight : WeightFunction or callable, optional
        What an edge scores; the scaled dot product by default.
    normalizer : Normalizer, optional
        How a neighbourhood's scores become attention; softmax by default.
    key_channels, value_channels : int, optional
        Sizes of the features of keys and values, if they differ from `channels`.
    bias : bool
        Whether the four projections have a bias.
    dropout : float
        The share of the attention dropped in training.
    engine, compile
        As in `graph_attention`.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need.

    Examples
    --------
    >>> layer = GraphAttention(16, num_heads=4)
    >>> layer(torch.randn(5, 16), TokenGraph.causal(5)).shape
    torch.Size([5, 16])
    """

    def __init__(
        self,
        channels: int,
        num_heads: int = 1,
        *,
        weight: WeightFunction | PairFunction | None = None,
        normalizer: Normalizer | None = None,
        key_channels: int | None = None,
        value_channels: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        engine: str | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        are_whole = isinstance(channels, Integral) and isinstance(num_heads, Integral)
        if not are_whole or channels < 1 or num_heads < 1 or channels % num_heads:
            raise ShapeError(
                "channels and num_heads must be whole numbers, channels a multiple of num_heads, "
                f"not {channels!r} and {num_heads!r}."
            )
        if not 0 <= dropout <= 1:
            raise ShapeError(f"dropout must be a share from 0 to 1, not {dropout!r}.")
        self.channels, self.num_heads, self.dropout = channels, num_heads, dropout
        self.engine, self.compile_weight = engine, compile
        self.weight = ScaledDotProduct() if weight is None else as_weight_function(weight)
        self.normalizer = Softmax() if normalizer is None else as_normalizer(normalizer)
        self.project_query = nn.Linear(channels, channels, bias)
        self.project_key = nn.Linear(key_channels or channels, channels, bias)
        self.project_value = nn.Linear(value_channels or channels, channels, bias)
        self.project_output = nn.Linear(channels, channels, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the projections again (Xavier uniform, biases zero)."""
        for projection in self._projections:
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    @property
    def _projections(self) -> tuple[nn.Linear, ...]:
        return self.project_query, self.project_key, self.project_value, self.project_output

    @classmethod
    def from_torch(cls, attention: nn.MultiheadAttention) -> GraphAttention:
        """Copy a `torch.nn.MultiheadAttention`, which gives the same numbers on the same inputs.

        Its ``add_zero_attn`` becomes a softmax with a sink of logit 0. In gattn a batch is always
        (batch, tokens, channels). A MultiheadAttention with ``batch_first=False``, torch's
        default, takes (tokens, batch, channels): transpose its inputs and outputs.

        Raises
        ------
        ShapeError
            If it was built with ``add_bias_kv``, an extra learned key that is not a token.
        """
        if attention.bias_k is not None:
            raise ShapeError(
                "MultiheadAttention(add_bias_kv=True) has an extra learned key that belongs to no "
                "token; build it without add_bias_kv."
            )
        layer = cls(
            attention.embed_dim,
            attention.num_heads,
            normalizer=Softmax(sink=0.0 if attention.add_zero_attn else None),
            key_channels=attention.kdim,
            value_channels=attention.vdim,
            bias=attention.in_proj_bias is not None,
            dropout=attention.dropout,
        )
        weights: Sequence[Tensor]
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        else:
            weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        stacked = attention.in_proj_bias
        biases = (None, None, None) if stacked is None else stacked.chunk(3)
        given = (*weights, attention.out_proj.weight), (*biases, attention.out_proj.bias)
        layer.to(weights[0])
        with torch.no_grad():
            for projection, weight, bias in zip(layer._projections, *given, strict=True):
                projection.weight.copy_(weight)
                if bias is not None:
                    projection.bias.copy_(bias)
        layer.train(attention.training)
        return layer

    def forward(
        self,
        x: Tensor,
        graph: TokenGraph | Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        edge_features: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor
            The queries' features, (queries, channels) or (batch, queries, channels).
        graph : TokenGraph or Tensor
            Who may attend to whom; a plain ``edge_index = [key; query]`` keeps the order of its
            edges, and duplicates.
        key, value : Tensor, optional
            Features of keys and values, for cross-attention; by default `x`, and those of keys.
        edge_features : Tensor, optional
            Shape (edges, features) in the graph's edge order, or (queries, keys, features).

        Returns
        -------
        Tensor
            Shape of `x`.
        """
        key = x if key is None else key
        value = key if value is None else value
        if x.dim() not in (2, 3) or not x.dim() == key.dim() == value.dim():
            raise ShapeError(
                "expected features (tokens, channels) or (batch, tokens, channels), got "
                f"{tuple(x.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
            )
        call, lead = attention_call(
            self._split(self.project_query, x),
            self._split(self.project_key, key),
            self._edges(graph, x, key),
            self.weight,
            self.normalizer,
            self._split(self.project_value, value),
            edge_features,
            self.dropout if self.training else 0.0,
            self.compile_weight,
        )
        if self._is_watched() and x.dim() == 3:
            raise ShapeError(
                "Explainers and hooks look at one graph at a time: pass (tokens, channels), "
                f"not a batch {tuple(x.shape)}; batch graphs as a disjoint union."
            )

        def run(some: AttentionCall) -> Tensor:
            with naming_shapes(some):
                if self._is_watched() or self._has_own_steps():
                    engine = message_passing
                elif self.engine is None or some is not call:
                    engine = choose(some)
                else:
                    engine = named(self.engine, some)
                return self.attend(some) if engine is message_passing else engine.run(some)

        output = watched(self, call, run)
        output = output.reshape(*lead, *output.shape[1:])
        projected: Tensor = self.project_output(output.transpose(-3, -2).flatten(-2))
        return projected

    def graphs(
        self,
        x: Tensor,
        graph: TokenGraph,
        key: Tensor | None = None,
        *,
        edge_features: Tensor | None = None,
        keep: Keep | None = None,
        scores: bool = False,
        tokens: Sequence[str] = (),
        query_tokens: Sequence[str] = (),
    ) -> list[AttentionGraph]:
        """Compute the attention graph of each head; see `attention_graphs`."""
        return attention_graphs(
            self._split(self.project_query, x),
            self._split(self.project_key, x if key is None else key),
            graph,
            weight=self.weight,
            normalizer=self.normalizer,
            edge_features=edge_features,
            keep=keep,
            scores=scores,
            tokens=tokens,
            query_tokens=query_tokens,
            engine=self.engine if self.engine in ("tiles", "edges") else None,
            compile=self.compile_weight,
        )

    def _split(self, projection: nn.Linear, x: Tensor) -> Tensor:
        if x.shape[-1] != projection.in_features:
            raise ShapeError(
                f"expected features of {projection.in_features} channels, got {tuple(x.shape)}."
            )
        projected: Tensor = projection(x).unflatten(-1, (self.num_heads, -1))
        return projected.transpose(-3, -2)

    @staticmethod
    def _edges(graph: TokenGraph | Tensor, x: Tensor, key: Tensor) -> TokenGraph | EdgeList:
        if isinstance(graph, TokenGraph):
            return graph
        if not isinstance(graph, Tensor) or graph.layout != torch.strided:
            raise ShapeError(
                "graph must be a TokenGraph or an edge_index of shape (2, edges), not "
                f"{type(graph).__name__}."
            )
        return EdgeList(graph.as_subclass(Tensor), x.shape[-2], key.shape[-2])

    def _is_watched(self) -> bool:
        return bool(self.explain) or any(getattr(self, hooks) for hooks in _HOOKS)

    def _has_own_steps(self) -> bool:
        """Return whether a subclass overrides a step of message passing."""
        steps = ("message", "aggregate", "update")
        return any(getattr(type(self), step) is not getattr(EdgeAttention, step) for step in steps)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.channels}, num_heads={self.num_heads}, "
            f"weight={self.weight!r}, normalizer={self.normalizer!r})"
        )
