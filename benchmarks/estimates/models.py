"""The models whose estimates are measured, and their metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.faithfulness import models, texts

NAMES = ("embedded", "minilm", "gpt2-shape")
_TOKENS = 10
_DECAY = 0.5
"""Singular values fall as rank ** -_DECAY, as those of trained weights do."""


def cases(name: str, number: int) -> Iterator[tuple[str, tuple[Any, Any, Any], dict[str, Any]]]:
    """Give the name of each metric, what is run, and the metric's options, for each text."""
    if name == "gpt2-shape":
        model, tokenizer = structured(), None
        some: list[Any] = [_repeated(seed) for seed in range(number)]
    else:
        found = models.loaded(name)
        if found is None:
            print(f"{name}: left out, GATTN_MINILM names no folder", flush=True)
            return
        model, tokenizer = found
        some = [texts.KINDS[kind](number)[n] for n in range(number) for kind in texts.KINDS]
    if name == "minilm":
        for case in models.cases(model, tokenizer, some):
            yield "cosine", case.given, {}
        return
    for text in some:
        ids = [text] if tokenizer is None else tokenizer(text)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor(ids).reshape(1, -1)).logits[0, -1]
        target, other = logits.topk(2).indices.tolist()
        for metric, named in (
            ("logit_difference", {"target": target, "other": other}),
            ("probability", {"target": target}),
            ("loss", {}),
            ("kl", {}),
        ):
            yield metric, (text, model, tokenizer), {"metric": metric, **named}


def structured() -> Any:
    """Make a model of GPT-2's shape whose weights have decaying spectra and whose heads are sharp.

    Random weights would give even attention, and effects that are all alike.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config()).eval()
    width = model.config.n_embd
    with torch.no_grad():
        for block in model.transformer.h:
            vectors = [_matrix(width, width, size) for size in (0.08, 0.08, 0.04)]
            block.attn.c_attn.weight.copy_(torch.cat(vectors, dim=1))
            for layer in (block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
                layer.weight.copy_(_matrix(*layer.weight.shape, 0.04))
        model.transformer.ln_f.weight.fill_(4)  # A sharper prediction: that of GPT-2 is, too.
    return model.double()


def _matrix(rows: int, columns: int, size: float) -> torch.Tensor:
    """Draw a matrix with decaying singular values, and entries of a standard deviation."""
    rank = min(rows, columns)
    left, right = (torch.linalg.qr(torch.randn(n, rank))[0] for n in (rows, columns))
    whole = (left * torch.arange(1, rank + 1).float() ** -_DECAY) @ right.T
    return whole * size / whole.std()


def _repeated(seed: int) -> list[int]:
    """Draw tokens, and repeat them."""
    draw = torch.Generator().manual_seed(seed)
    half: list[int] = torch.randint(50_257, (_TOKENS // 2,), generator=draw).tolist()
    return half * 2
