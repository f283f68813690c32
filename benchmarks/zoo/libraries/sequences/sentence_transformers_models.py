"""sentence-transformers: transformers of several kinds inside its modules, small."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.coverage.libraries.case import Case
from benchmarks.zoo import randomize

_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 31,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert/mean": ("Bert", _SMALL, "mean"),
    "bert/cls": ("Bert", _SMALL, "cls"),
    "roberta/max": ("XLMRoberta", _SMALL, "max"),
    "mpnet/mean": ("MPNet", _SMALL, "mean"),
    "distilbert/mean": (
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 31},
        "mean",
    ),
    "modernbert/mean": (
        "ModernBert",
        {**_SMALL, "global_attn_every_n_layers": 2, "local_attention": 4},
        "mean",
    ),
    "qwen3/last-token": (
        "Qwen3",
        {**_SMALL, "num_key_value_heads": 2, "head_dim": 8},
        "lasttoken",
    ),
}
_LETTERS = [chr(97 + n) for n in range(26)]


def names() -> list[str]:
    return list(_MODELS)


def build(name: str) -> Case:
    import transformers
    from sentence_transformers import SentenceTransformer, models

    kind, sizes, pooling = _MODELS[name]
    torch.manual_seed(0)
    inner = transformers.AutoModel.from_config(getattr(transformers, f"{kind}Config")(**sizes))
    randomize(inner)
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "vocab.txt"
        words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS]))
        transformers.BertTokenizer(str(words)).save_pretrained(folder)
        inner.save_pretrained(folder)
        first: Any = models.Transformer(folder, max_seq_length=16)
    pooled = models.Pooling(first.get_word_embedding_dimension(), pooling_mode=pooling)
    model = SentenceTransformer(modules=[first, pooled, models.Normalize()], device="cpu").eval()
    features = model.preprocess(["a b c d e f", "g h i"])
    return Case(name, model, (dict(features),), call=_embed, own=returned)


def _embed(model: Any, features: dict[str, Any]) -> Any:
    """Run a model on a copy of its inputs, to which it adds its outputs."""
    return model(dict(features))


def returned(case: Case) -> list[Tensor]:
    """Return the attention that the transformers model inside returns, from its eager code."""
    inner: Any = copy.deepcopy(case.model[0].model)  # type: ignore[index]
    inner.set_attn_implementation("eager")
    features = {key: value for key, value in case.args[0].items() if isinstance(value, Tensor)}
    if "token_type_ids" in features and not type(inner).__name__.startswith("Bert"):
        del features["token_type_ids"]
    with torch.no_grad():
        found = inner(**features, output_attentions=True).attentions
    is_real = features["attention_mask"][:, None, :, None]
    return [attention * is_real for attention in found]
