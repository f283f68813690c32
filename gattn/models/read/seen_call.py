"""A call of a model's attention, as a door has seen it: the same whatever the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.read.token_maps import TokenMap

EXTRA_KEYS = "[bias]", "[zero]"
"""The names of the keys that `nn.MultiheadAttention` adds after those of tokens."""
LEAST = -9e3
"""An edge is absent where less than this is added to its score, since some mask by -10,000."""


@dataclass
class SeenCall:
    """One call of softmax attention.

    Parameters
    ----------
    name, module
        The module that attends, and its qualified name.
    query, key, value : Tensor
        (batch, heads, queries, dim), (batch, key heads, keys, dim) and (batch, key heads, keys,
        value dim); the dims are 0 where only scores are seen.
    output : Tensor (batch, queries, heads, value dim)
        What the model computed; edits replace it.
    weights : Tensor (batch, heads, queries, keys), optional
        The attention, where the model gives it; edits replace it, too.
    mask : Tensor, optional
        Booleans, or numbers that are added to scores, which broadcast to (batch, heads, queries,
        keys); where it `is_scores`, the scores themselves.
    is_causal : bool
        Whether, without a mask, a query reads nothing after itself.
    is_half : bool
        Whether its softmax was taken in half precision, whatever its tensors are.
    is_ranked : bool
        Whether only the largest scores were kept; then the others are -inf, masked ones finite.
    least : float
        An edge is absent where the mask adds less than this.
    scale, softcap : float, optional
        What scores are multiplied with and capped by.
    bias : Tensor, optional
        What is added to scores besides the mask, as the mask is.
    sink : Tensor (heads,), optional
        The logits of a sink.
    dropped : Tensor (batch, heads, queries, n), optional
        The scores of slots that took part in the softmax and bring no value, which are a sink, too.
    dropout : float
        The probability that attention is dropped.
    is_own : bool
        Whether the user wrote the function, which then is proved on all rows.
    unread : str
        The argument by which keys were chosen in a way that gattn does not read.
    is_cross : bool, optional
        Whether the keys are other tokens than the queries, where the door knows.
    projection : Tensor (channels, heads * value dim), optional
        The weight W_O that the output of all heads is multiplied with next, where the door knows.
    part : int
        How many calls of attention came before it, within one run of its module.
    stack : str
        The name of its stack, where the door knows.
    tokens : TokenMap, optional
        Which tokens its slots are, where that was proved.
    is_foreign : bool
        Whether its tokens are nodes of a graph, and no tokens whose ids the model is given.
    is_named : bool
        Whether it is known which tokens of the input its tokens are, so that they may have names.
    is_seen_again : bool
        Whether edits reach it where a backward pass computes it again, as in a checkpoint.
    is_shown : bool
        Whether some context looks at it.
    is_edited : bool
        Whether its attention is edited.
    keeps_attention : bool
        Whether it is edited, but only in its values or output.
    token_names : mapping
        The texts of its `tokens` and `query_tokens`, where the door knows.
    extra_keys : tuple of str
        The names of the last keys that are no tokens, where the door knows.
    reads_itself : bool
        Whether the door knows that the keys before these are the tokens of the queries.
    token_spellings : tuple of str
        Other texts of its `tokens`, by which edits find them, too.
    options : mapping
        All further arguments, which errors name.
    """

    name: str
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    weights: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False
    is_scores: bool = False
    is_half: bool = False
    is_ranked: bool = False
    least: float = LEAST
    scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None
    dropped: Tensor | None = None
    dropout: float = 0.0
    is_own: bool = False
    unread: str = ""
    is_cross: bool | None = None
    projection: Tensor | None = None
    part: int = 0
    tokens: TokenMap | None = None
    stack: str = ""
    is_foreign: bool = False
    is_named: bool = True
    is_seen_again: bool = True
    is_shown: bool = False
    is_edited: bool = False
    keeps_attention: bool = False
    token_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_keys: tuple[str, ...] = ()
    reads_itself: bool = False
    token_spellings: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Its module, as errors name it."""
        return self.name or "the model itself"

    def names_of(self, num_keys: int) -> Mapping[str, tuple[str, ...]]:
        """Return the texts that its door knows of a graph with so many keys."""
        if not self.extra_keys:
            return self.token_names
        tokens = map(str, range(num_keys - len(self.extra_keys)))
        return {**self.token_names, "tokens": (*tokens, *self.extra_keys)}

    def write_out(self) -> None:
        """Say by a mask what a causal call with other numbers of queries and keys means.

        Query n reads the first n + 1 keys.
        """
        sizes = self.query.shape[2], self.key.shape[2]
        if self.mask is None and self.is_causal and sizes[0] != sizes[1]:
            ones = torch.ones(sizes, dtype=torch.bool, device=self.query.device)
            self.mask = ones.tril()[None, None]


def extra_of(names: Sequence[str]) -> Sequence[str]:
    """Return the last names that are of keys that are no tokens."""
    return [name for name in names[-len(EXTRA_KEYS) :] if name in EXTRA_KEYS]
