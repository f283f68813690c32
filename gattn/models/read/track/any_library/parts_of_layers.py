"""Places a call that is a part of a layer, as in a loop over heads or chunks of queries."""

from __future__ import annotations

import torch

from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.token_maps import Joined, TokenMap


def part_of_layer(
    call: SeenCall, tokens: TokenMap, joined: Joined, stack: str, layer: int
) -> Place:
    """Return where a call is that is a part of a layer."""
    length, slots = call.query.shape[2], call.key.shape[2]
    is_cross, sequences = tokens.is_cross, list(tokens.sequences)
    sizes = tokens.num_queries, tokens.num_keys
    if tokens.is_told:
        start = joined.start
        queries, keys = (
            [Side(torch.arange(size, device="cpu"), first, at) for at in of]
            for size, first, of in (
                (length, start, tokens.query_positions),
                (slots, start, tokens.key_positions),
            )
        )
        return Place(stack, layer, is_cross, queries, keys, sequences, is_cross, sizes)
    queries = [Side(torch.arange(length, device="cpu"), joined.start)] * len(sequences)
    keys = [Side(torch.arange(slots, device="cpu"), 0)] * len(sequences)
    where = stack, layer, is_cross, queries, keys, sequences, is_cross, sizes
    return Place(*where, head=joined.head, heads=joined.heads)
