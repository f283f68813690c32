"""Capturing every head of a model of GPT-2's shape, beside transformers' output_attentions.

python benchmarks/capture.py --sizes 128 512
"""

from collections.abc import Callable

import torch
from measure import main, timed

import gattn
from gattn import Threshold, TopK


def model_and_ids(size: int, attention: str) -> tuple[torch.nn.Module, torch.Tensor]:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(attn_implementation=attention, n_positions=max(size, 1024)))
    return model.eval(), torch.randint(0, 50257, (1, size))


def plain(size: int, repeats: int) -> dict[str, float]:
    model, ids = model_and_ids(size, "sdpa")
    return timed(lambda: model(ids, use_cache=False), repeats)


def output_attentions(size: int, repeats: int) -> dict[str, float]:
    model, ids = model_and_ids(size, "eager")
    return timed(lambda: model(ids, use_cache=False, output_attentions=True).attentions, repeats)


def capture(**options: object) -> Callable[[int, int], dict[str, float]]:
    def case(size: int, repeats: int) -> dict[str, float]:
        model, ids = model_and_ids(size, "sdpa")
        return timed(lambda: gattn.capture(ids, model, **options), repeats)

    return case


if __name__ == "__main__":
    with torch.no_grad():
        main(
            __file__,
            "Capturing all 144 heads of a model of GPT-2's shape, random weights, batch 1",
            {
                "sdpa, nothing captured": plain,
                "eager, output_attentions=True": output_attentions,
                "gattn.capture, all edges": capture(keep=gattn.All()),
                "gattn.capture, TopK(8)": capture(keep=TopK(8)),
                "gattn.capture, Threshold(0.02)": capture(keep=Threshold(0.02)),
            },
        )
