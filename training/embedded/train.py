"""Train the embedded model from scratch, and export it with its tokenizer.

``python training/embedded/train.py`` builds the corpus, trains the tokenizer and the model, and
writes the result to ``gattn/models/embedded``. Run again with the same folder, it resumes from
the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from batches import IGNORED, Mixture, Sampler
from corpus import SEPARATOR, Corpus, build_corpus
from evaluate import KneserNeyTrigram, bits_per_byte, model_nats, score_heads
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizer import START, train_tokenizer, wrap
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

HERE = Path(__file__).resolve().parent
EXPORT = HERE.parents[1] / "gattn" / "models" / "embedded"


def parse_arguments() -> argparse.Namespace:
    """Read the settings; the defaults are those of the shipped model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=HERE / "runs" / "main", help="run folder")
    parser.add_argument("--export", type=Path, default=EXPORT, help="folder of the result")
    parser.add_argument("--steps", type=int, default=4400)
    parser.add_argument("--stop", type=int, default=None, help="stop after this step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--inner", type=int, default=320)
    parser.add_argument("--vocab", type=int, default=2560)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rotary-base", type=float, default=100.0)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--length", type=int, default=192)
    parser.add_argument("--short-until", type=int, default=600, help="steps with short rows")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument(
        "--bias-rate", type=float, default=1e-2, help="for biases of queries and keys"
    )
    parser.add_argument("--bias-spread", type=float, default=1.0, help="their initial spread")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay-from", type=int, default=2000, help="step")
    parser.add_argument("--long-from", type=int, default=2200, help="step")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=500)
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> LlamaForCausalLM:
    """Build the model with seeded random weights."""
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.width,
        intermediate_size=args.inner,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.heads,
        max_position_embeddings=args.context,
        rope_parameters={"rope_type": "default", "rope_theta": args.rotary_base},
        attention_bias=True,
        tie_word_embeddings=False,
        initializer_range=0.04,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            nn.init.normal_(parameter, std=args.bias_spread)
    return model


def build_optimizers(model: nn.Module, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Set up Muon for the layers' matrices; AdamW for embeddings, output, norms and biases."""
    matrices, biases, others = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and ".layers." in name:
            matrices.append(parameter)
        elif name.endswith(("q_proj.bias", "k_proj.bias")):
            biases.append(parameter)
        else:
            others.append(parameter)
    groups = [
        {"params": others, "lr": args.adam_rate, "weight_decay": 0.01},
        {"params": biases, "lr": args.bias_rate, "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon(matrices, lr=args.muon_rate, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(groups, betas=(0.9, 0.98)),
    ]


def rate_at(step: int, args: argparse.Namespace) -> float:
    """Return the learning rate's factor: warm-up, a level stretch, linear decay to zero."""
    warm = min(1.0, (step + 1) / args.warmup)
    return warm * min(1.0, max(0.0, (args.steps - step) / (args.steps - args.decay_from)))


def shape_at(step: int, args: argparse.Namespace) -> tuple[int, int]:
    """Return a batch's rows and length: short rows first, some long ones later."""
    if step < args.short_until:
        return args.rows * 3, args.length // 3
    factor = {7: 2, 15: 4}.get(step % 16, 1) if step >= args.long_from else 1
    return args.rows // factor, args.length * factor


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> None:
    """Write weights and optimizer state after a step, replacing the last ones."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{number}.{index}.{name}"] = value
    path = folder / "checkpoint.safetensors"
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"step": str(step)})
    part.replace(path)


def load_checkpoint(folder: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    """Load the last checkpoint, if there is one.

    Returns
    -------
    int
        The number of steps already done.
    """
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
    tensors = load_file(path)
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    model.load_state_dict(weights)
    for number, optimizer in enumerate(optimizers):
        content = optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith(f"optimizer.{number}."):
                index, field = name.split(".")[2:]
                content["state"].setdefault(int(index), {})[field] = value
        optimizer.load_state_dict(content)
    return step


def export(
    model: PreTrainedModel, tokenizer: Tokenizer, folder: Path, args: argparse.Namespace
) -> None:
    """Write weights, configuration and tokenizer in transformers' format."""
    folder.mkdir(parents=True, exist_ok=True)
    # In the model's own configuration, a padding token would keep its embedding from training.
    model.generation_config.pad_token_id = model.config.eos_token_id
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    wrap(tokenizer, args.context).save_pretrained(folder)


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Encode texts without the start token."""
    return [item.ids for item in tokenizer.encode_batch(texts, add_special_tokens=False)]


def heldout_texts() -> dict[str, list[str]]:
    """Read the held-out documents next to this file, by file name."""
    return {
        path.stem: path.read_text(encoding="utf-8").removesuffix("\n").split(SEPARATOR)
        for path in sorted(HERE.glob("heldout*.txt"))
    }


def model_report(model: PreTrainedModel, tokenizer: Tokenizer) -> dict[str, float]:
    """Measure bits per byte of the model on the held-out texts."""
    return {
        name: round(bits_per_byte(model_nats(model, encode(tokenizer, texts)), texts), 4)
        for name, texts in heldout_texts().items()
    }


def baseline_report(tokenizer: Tokenizer, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Measure bits per byte of trigrams over tokens and over bytes on the held-out texts."""
    training = corpus.docs + corpus.stories
    tokens = KneserNeyTrigram(encode(tokenizer, training), tokenizer.get_vocab_size())
    octets = KneserNeyTrigram([text.encode("utf-8") for text in training], 256)
    report = {}
    for name, texts in heldout_texts().items():
        raw = [text.encode("utf-8") for text in texts]
        report[name] = {
            "token_trigram": round(bits_per_byte(tokens.nats(encode(tokenizer, texts)), texts), 4),
            "byte_trigram": round(bits_per_byte(octets.nats(raw), texts), 4),
        }
    return report


def main() -> None:
    """Corpus, tokenizer, training, evaluation, export."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    corpus = build_corpus()
    tokenizer = train_tokenizer(corpus, args.vocab)
    if tokenizer.token_to_id(START) != 0:
        raise RuntimeError("the start token must be token 0")
    sampler = Sampler(tokenizer, corpus, Mixture(), args.seed)
    model = build_model(args)
    optimizers = build_optimizers(model, args)
    done = load_checkpoint(args.run, model, optimizers)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    bases = [group["lr"] for group in groups]
    with (args.run / "log.jsonl").open("a", encoding="utf-8") as log:

        def note(entry: dict) -> None:
            line = json.dumps(entry)
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()

        note(
            {
                "from_step": done,
                "corpus_sha256": corpus.sha256(),
                "python": sys.version.split()[0],
                "torch": torch.__version__,
                "threads": args.threads,
                "parameters": sum(p.numel() for p in model.parameters()),
                "tokens": [len(stream) for stream in sampler.streams],
                "settings": {k: v for k, v in vars(args).items() if k not in ("run", "export")},
            }
        )
        model.train()
        began, losses = time.monotonic(), []
        last = min(args.steps, args.stop or args.steps)
        for step in range(done, last):
            rows, length = shape_at(step, args)
            inputs, targets = sampler.batch(step, rows, length)
            logits = model(inputs, use_cache=False).logits
            loss = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            factor = rate_at(step, args)
            for group, base in zip(groups, bases, strict=True):
                group["lr"] = base * factor
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            finished = step + 1
            if finished % args.log_every == 0 or finished == last:
                scores = score_heads(model, count=20, seed=10_000)
                note(
                    {
                        "step": finished,
                        "seconds": round(time.monotonic() - began, 1),
                        "loss": round(sum(losses) / len(losses), 4),
                        "first_loss": round(scores.first_loss, 3),
                        "second_loss": round(scores.second_loss, 3),
                        "previous": [round(x, 3) for x in scores.previous.flatten().tolist()],
                        "induction": [round(x, 3) for x in scores.induction.flatten().tolist()],
                    }
                )
                losses = []
            if finished % args.save_every == 0 or finished == last:
                save_checkpoint(args.run, finished, model, optimizers)
                note({"step": finished, "bits_per_byte": model_report(model, tokenizer)})
        model.eval()
        scores = score_heads(model)
        note(
            {
                "final": {
                    "first_loss": scores.first_loss,
                    "second_loss": scores.second_loss,
                    "previous": scores.previous.tolist(),
                    "induction": scores.induction.tolist(),
                    "start": scores.start.tolist(),
                    "bits_per_byte": model_report(model, tokenizer),
                    "baselines": baseline_report(tokenizer, corpus),
                }
            }
        )
    export(model, tokenizer, args.export, args)


if __name__ == "__main__":
    main()
