"""fair-esm: ESM-2, ESM-1b, ESM-1 and the MSA Transformer, small."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized

_SIZES: dict[str, Any] = {
    "num_layers": 2,
    "embed_dim": 32,
    "ffn_embed_dim": 48,
    "attention_heads": 4,
    "layers": 2,
    "max_positions": 64,
    "max_tokens": 512,
    "logit_bias": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "final_bias": True,
    "embed_positions_msa": True,
    "embed_positions_msa_dim": 32,
    "token_dropout": False,
    "max_tokens_per_msa": 2**14,
}
_ARCHITECTURES = {
    "esm2": "ESM-1b",
    "esm1b": "roberta_large",
    "esm1": "protein_bert_base",
    "msa": "msa_transformer",
}
_PROTEINS = [("one", "MKTAYIAK"), ("two", "MKGQERFS")]


def names() -> list[str]:
    """List each architecture, and some on a batch with padding."""
    return [*_ARCHITECTURES, "esm2/padded", "esm1b/padded"]


def build(name: str) -> Case:
    kind, _, told = name.partition("/")
    import esm

    alphabet = esm.Alphabet.from_architecture(_ARCHITECTURES[kind])
    proteins: Any = [_PROTEINS[0], ("short", "MKTAY")] if told else _PROTEINS
    if kind == "msa":
        proteins = [[*_PROTEINS, ("three", "MKTQYRFK")], [*_PROTEINS[::-1], ("four", "MGTAYFAK")]]
    _, _, ids = alphabet.get_batch_converter()(proteins)

    def make() -> nn.Module:
        if kind == "esm2":
            return esm.ESM2(2, 32, 4, alphabet, token_dropout=False)
        options = Namespace(arch=_ARCHITECTURES[kind], **_SIZES)
        made: nn.Module = (esm.MSATransformer if kind == "msa" else esm.ProteinBertModel)(
            options, alphabet
        )
        return made

    own = returned if kind.startswith("esm") else None
    return Case(name, randomized(make, ids), (ids,), own=own)


def returned(case: Case) -> list[Tensor]:
    """Return each layer's attention as `need_head_weights` gives it."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        found.append(output[1].transpose(0, 1))

    handles = [layer.register_forward_hook(note) for layer in case.model.layers]  # type: ignore
    with torch.no_grad():
        case.model(*case.args, need_head_weights=True)
    for handle in handles:
        handle.remove()
    return found
