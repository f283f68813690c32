"""The residual stream before a layer of a live model, taken apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gattn.models.decompose.decomposing import decompose
from gattn.models.run.functions import Runnable
from gattn.models.stream.parts import Growing, Stream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def stream_before(
    layer: int,
    embeddings: Stream,
    text: Runnable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: str,
    split: Collection[tuple[int, int]] = (),
) -> Stream:
    """Take the residual stream before a layer apart; that before the first one is given.

    What the heads in `split` add is split by the token that they read.
    """
    if not layer:
        return embeddings
    growing = Growing(embeddings, split)
    layers = range(layer)
    decompose(text, model, tokenizer, read=growing.add, layers=layers, stack=stack, progress=False)
    return growing.stream()
