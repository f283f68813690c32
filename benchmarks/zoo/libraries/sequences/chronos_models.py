"""Chronos: the language models, Bolt and Chronos-2, small."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo.libraries.randomizing import randomized

_SIZES: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
_FORECAST: dict[str, Any] = {
    "context_length": 48,
    "input_patch_size": 8,
    "input_patch_stride": 8,
    "quantiles": [0.1, 0.5, 0.9],
    "use_reg_token": True,
}
_TOKENS: dict[str, Any] = {
    "tokenizer_class": "MeanScaleUniformBins",
    "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
    "context_length": 16,
    "prediction_length": 3,
    "n_tokens": 40,
    "n_special_tokens": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "use_eos_token": True,
    "model_type": "seq2seq",
    "num_samples": 2,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}


def names() -> list[str]:
    return ["t5/encode", "t5/padded", "t5/decode", "bolt", "bolt/missing", "chronos-2"]


def build(name: str) -> Case:
    torch.manual_seed(0)
    kind, _, told = name.partition("/")
    if kind == "t5":
        return _language_model(name, told)
    series = torch.randn(2, 48).cumsum(1)
    if told:
        series[1, :16] = torch.nan
    if kind == "bolt":
        return Case(name, randomized(_bolt, series), (series,))
    options = {"group_ids": torch.tensor([0, 0]), "num_output_patches": 2}
    return Case(name, randomized(_second, series, **options), (series,), options)


def _language_model(name: str, told: str) -> Case:
    import transformers
    from chronos.chronos import ChronosConfig, ChronosModel

    config = transformers.T5Config(**_SIZES, vocab_size=40, decoder_start_token_id=0)
    ids, mask = torch.randint(2, 40, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    if told == "padded":
        ids[1, :3], mask[1, :3] = 0, False

    def make() -> nn.Module:
        inner = transformers.T5ForConditionalGeneration(config)
        made: nn.Module = ChronosModel(ChronosConfig(**_TOKENS), inner)
        return made

    model = randomized(make, ids, mask)
    return Case(name, model, (ids, mask), call=_decode if told == "decode" else _encode)


def _encode(model: Any, ids: Tensor, mask: Tensor) -> Any:
    return model.encode(ids, mask)


def _decode(model: Any, ids: Tensor, mask: Tensor) -> Any:
    """Run the model on what it would have forecast."""
    return model.model(ids, mask, decoder_input_ids=torch.tensor([[0, 5, 9, 7], [0, 4, 3, 8]]))


def _bolt() -> nn.Module:
    import transformers
    from chronos.chronos_bolt import ChronosBoltModelForForecasting

    config = transformers.T5Config(
        **_SIZES, decoder_start_token_id=0, chronos_config={**_FORECAST, "prediction_length": 8}
    )
    made: nn.Module = ChronosBoltModelForForecasting(config)
    return made


def _second() -> nn.Module:
    from chronos.chronos2.config import Chronos2CoreConfig
    from chronos.chronos2.model import Chronos2Model

    forecast = {**_FORECAST, "output_patch_size": 8, "max_output_patches": 2}
    config = Chronos2CoreConfig(**_SIZES, chronos_config=forecast)
    made: nn.Module = Chronos2Model(config)
    return made
