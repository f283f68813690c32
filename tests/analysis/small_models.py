"""Small models with random weights, in double precision."""

import torch
import transformers

IDS = [5, 17, 42, 17, 8, 33]
SMALL = {
    "vocab_size": 60,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
SMALL_GPT2 = {"vocab_size": 60, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}


def built(kind, model_class, *, norms=False, **options):
    """Build a model whose weights are large, those of its norms too where asked for."""
    torch.manual_seed(0)
    if kind == "Gemma2":  # Older versions leave its soft cap out of torch's own attention.
        options = {"attn_implementation": "eager"} | options
    config = getattr(transformers, f"{kind}Config")(**options)
    model = getattr(transformers, f"{kind}{model_class}")(config).double().eval()
    for name, parameter in model.named_parameters():
        if norms or ("norm" not in name.lower() and "ln" not in name):
            parameter.data.normal_(0, 0.3)
    return model
