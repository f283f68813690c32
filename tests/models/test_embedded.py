"""The embedded model keeps what its card promises."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "gattn" / "models" / "embedded"
TRAINING = ROOT / "training" / "embedded"
SPAN = 50
COUNT = 100
# Bits per byte of an interpolated Kneser-Ney trigram over the same tokens, as the training script
# measures it on the same files.
TRIGRAM = {"heldout": 1.9409, "heldout_everyday": 2.4069}


def load(name: str) -> ModuleType:
    """A module of the training folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"embedded_{name}", TRAINING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def evaluate() -> ModuleType:
    return load("evaluate")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    loaded, report = AutoModelForCausalLM.from_pretrained(
        FOLDER, local_files_only=True, output_loading_info=True
    )
    assert not any(report.values()), report
    return loaded.eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def repeated(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, attention (layer, sequence, head, query, key) and losses on spans said twice."""
    generator = torch.Generator().manual_seed(977)
    span = torch.randint(1, model.config.vocab_size, (COUNT, SPAN), generator=generator)
    tokens = torch.cat([torch.zeros(COUNT, 1, dtype=torch.long), span, span], dim=1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(tokens, output_attentions=True, use_cache=False)
    losses = torch.nn.functional.cross_entropy(
        output.logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    return tokens, torch.stack(output.attentions), losses


def test_attention_is_a_causal_distribution(repeated):
    _, attention, _ = repeated
    layers, sequences, heads, queries, keys = attention.shape
    assert layers >= 2
    assert heads >= 4
    assert (sequences, queries, keys) == (COUNT, 2 * SPAN + 1, 2 * SPAN + 1)
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))
    assert attention.triu(1).abs().max() == 0


def test_a_head_attends_to_the_previous_token(repeated):
    _, attention, _ = repeated
    queries = torch.arange(1, 2 * SPAN + 1)
    score = attention[..., queries, queries - 1].mean(dim=(1, 3))
    assert score.max() >= 0.5
    assert score.min() < 0.2


def test_a_head_does_induction(repeated):
    tokens, attention, _ = repeated
    queries = torch.arange(SPAN + 1, 2 * SPAN + 1)
    keys = queries - SPAN + 1
    assert torch.equal(tokens[:, keys - 1], tokens[:, queries])
    score = attention[..., queries, keys].mean(dim=(1, 3))
    assert score.max() >= 0.4
    assert score.min() < 0.2
    previous = attention.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(1, 3))
    layer_of_previous = int(previous.max(dim=1).values.argmax())
    layer_of_induction = int(score.max(dim=1).values.argmax())
    assert layer_of_previous < layer_of_induction


def test_induction_follows_the_tokens_and_not_the_distance(model, repeated):
    tokens, attention, _ = repeated
    queries = torch.arange(SPAN + 1, 2 * SPAN + 1)
    score = attention[..., queries, queries - SPAN + 1].mean(dim=(1, 3))
    layer, head = divmod(int(score.argmax()), score.shape[1])
    broken = tokens.clone()
    broken[:, SPAN + 1 :] = tokens[:, SPAN + 1 :].roll(1, dims=0)
    with torch.no_grad():
        output = model(broken, output_attentions=True, use_cache=False)
    control = output.attentions[layer][:, head, queries, queries - SPAN + 1].mean()
    assert control < 0.1 < 0.4 <= score[layer, head]


def test_the_second_saying_costs_at_most_half(model, repeated):
    _, _, losses = repeated
    first, second = losses[:, :SPAN].mean(), losses[:, SPAN:].mean()
    uniform = math.log(model.config.vocab_size)
    assert first > 0.9 * uniform
    assert second <= 0.5 * uniform
    assert second <= 0.5 * first


@pytest.mark.parametrize("name", ["heldout", "heldout_everyday"])
def test_held_out_text_costs_less_than_with_a_trigram(model, tokenizer, evaluate, name):
    text = (TRAINING / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    documents = text.split("\n%%\n")
    size = sum(len(document.encode("utf-8")) for document in documents)
    assert size > 3000
    tokens = [tokenizer(document, add_special_tokens=False).input_ids for document in documents]
    bits = evaluate.model_nats(model, tokens) / math.log(2) / size
    assert 0.8 < bits < TRIGRAM[name]


def test_the_trigram_is_a_distribution(evaluate):
    trigram = evaluate.KneserNeyTrigram([[0, 1, 2, 0, 1, 3], [0, 1, 2, 2, 2]], 5)
    for context in ((0, 1), (2, 2), (4, 0), (4, 4), (-1, -1)):
        total = sum(trigram.probability(*context, token) for token in range(5))
        assert total == pytest.approx(1.0)
    assert trigram.probability(0, 1, 2) > trigram.probability(0, 1, 4) > 0


def test_everyday_words_are_whole_and_have_offsets(tokenizer):
    text = "The dog chased the cat, and the cat chased the dog. My mother ran to the river."
    encoded = tokenizer(text, return_offsets_mapping=True)
    pieces = [text[start:end] for start, end in encoded["offset_mapping"]]
    expected = "The dog chased the cat , and the cat chased the dog . My mother ran to the river ."
    assert pieces == ["", *expected.split()]
    assert encoded["input_ids"][0] == tokenizer.bos_token_id == 0


@pytest.mark.parametrize(
    "text",
    ["naïve café", "你好，世界", "🙂👩‍👩‍👧", "  tabs\tand\n\n lines ", "e\u0301", "1234567", ""],
)
def test_any_text_comes_back(tokenizer, text):
    tokens = tokenizer(text).input_ids
    assert tokens[0] == 0
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text


def test_the_context_beyond_the_training_rows_stays_sane(model, tokenizer):
    limit = model.config.max_position_embeddings
    text = (TRAINING / "heldout.txt").read_text(encoding="utf-8")
    tokens = tokenizer(text, truncation=True, max_length=limit).input_ids
    assert len(tokens) == limit
    row = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(row, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], row[0, 1:], reduction="none")
    assert torch.isfinite(losses).all()
    assert losses[limit // 2 :].mean() < 1.5 * losses[: limit // 2].mean()


def test_the_files_are_small_and_complete():
    names = {path.name for path in FOLDER.iterdir() if path.is_file()}
    required = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert required <= names
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pkl"))}
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 8_000_000
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
