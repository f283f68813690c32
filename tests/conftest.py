import os

# Before any import of transformers: tests never touch the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import matplotlib as mpl
import pytest
import torch
from hypothesis import HealthCheck, settings

mpl.use("agg")

import matplotlib.pyplot as plt

torch.set_num_threads(1)

# Examples may take as long as a busy machine takes; CI draws the same ones each time.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("tests")


SLOW = {"browser", "cluster", "ran"}
"""Fixtures that start a browser or a Ray cluster, or run all examples."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if SLOW & set(item.fixturenames) or item.get_closest_marker("ray"):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def randn():
    """Draw normal numbers; the same ones each time a test runs."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, dtype=torch.float64):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


@pytest.fixture
def loops():
    """Attention in plain loops over (B, H, Q, D), (B, H, K, D) and (B, H, K, V).

    ``score(h, i, j, q, k)`` scores one pair; ``share(scores)`` normalizes one neighbourhood.
    """

    def softmax(scores):
        return scores.exp() / scores.exp().sum()

    def attend(query, key, value, mask, score, share=softmax):
        batch, heads, queries, _ = query.shape
        output = torch.zeros(batch, heads, queries, value.shape[-1], dtype=query.dtype)
        attention = torch.zeros(batch, heads, queries, key.shape[2], dtype=query.dtype)
        for b in range(batch):
            for h in range(heads):
                for i in range(queries):
                    near = [j for j in range(key.shape[2]) if mask[i, j]]
                    if not near:
                        continue
                    scores = [score(h, i, j, query[b, h, i], key[b, h, j]) for j in near]
                    shares = share(torch.stack([torch.as_tensor(s) for s in scores]))
                    for j, one in zip(near, shares, strict=True):
                        attention[b, h, i, j] = one
                        output[b, h, i] = output[b, h, i] + one * value[b, h, j]
        return output, attention

    return attend


SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PATCHES = {
    **{name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.3,
}
TINY = {
    "bert": ("BertModel", "BertConfig", SIZES),
    "roberta": ("RobertaModel", "RobertaConfig", SIZES | {"pad_token_id": 1}),
    "albert": ("AlbertModel", "AlbertConfig", SIZES | {"embedding_size": 16}),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        SIZES
        | {"local_attention": 6, "global_attn_every_n_layers": 2}
        | {"cls_token_id": 1, "sep_token_id": 2},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES | {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES | {"num_key_value_heads": 2}),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        SIZES | {"num_key_value_heads": 2, "sliding_window": 4},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        SIZES
        | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
        | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        SIZES
        | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
        | {"num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {"vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48}
        | {"decoder_ffn_dim": 48, "init_std": 0.3, "max_position_embeddings": 64},
    ),
    "vit": ("ViTModel", "ViTConfig", PATCHES),
    "vit of labels": ("ViTForImageClassification", "ViTConfig", PATCHES),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
}


@pytest.fixture(scope="session")
def tiny():
    """Build a small transformers model with random weights, the same ones each time."""
    import transformers

    def build(name, implementation="sdpa", dtype=torch.float32, **options):
        kind, configuration, sizes = TINY[name]
        generator = torch.random.get_rng_state()
        torch.manual_seed(0)
        config = getattr(transformers, configuration)(
            **sizes | options, attn_implementation=implementation
        )
        try:
            model = getattr(transformers, kind)(config)
        except ValueError as error:  # an older transformers
            if "does not support an attention implementation" not in str(error):
                raise
            pytest.skip(f"{kind} has no {implementation} attention here")
        for parameter_name, parameter in model.named_parameters():
            if "sink" in parameter_name or "relative_attention_bias" in parameter_name:
                torch.nn.init.normal_(parameter)
        torch.random.set_rng_state(generator)
        return model.to(dtype).eval()

    return build


WORDS = ["the", "dog", "chased", "cat", "and", "a", "walk", "##ed", "##ing", ".", ",", "fish"]


@pytest.fixture(scope="session")
def tokenizer():
    """A word-piece tokenizer that puts [CLS] before and [SEP] behind."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}
    words = {word: index for index, word in enumerate(WORDS, start=len(special))}
    fast = Tokenizer(models.WordPiece(special | words, unk_token="[UNK]"))
    fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
