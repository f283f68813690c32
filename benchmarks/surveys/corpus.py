"""The texts and models of these benchmarks: every machine with Python has them."""

import ast
import json
import random
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

FEWEST, MOST_TOKENS = 200, 1024
"""The fewest characters of a docstring, and the most tokens of the embedded model."""
LENGTH = 512
"""The tokens of a text for the model of GPT-2's shape."""
_OTHERS = {"test", "tests", "site-packages", "idlelib"}


def prepare(work: Path) -> None:
    """Write the texts, and a model of GPT-2's shape, into a folder."""
    from transformers.utils import logging

    from gattn import load_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    _, tokenizer = load_model()
    texts = [one for one in docstrings() if len(one) >= FEWEST]
    fitting = [one for one in texts if len(tokenizer(one)["input_ids"]) <= MOST_TOKENS]
    _write(work / "docstrings.json", fitting)
    _write(work / "sentences.json", [" ".join(one.split(".")[0].split())[:100] for one in texts])
    _write_gpt2_shape(work / "gpt2-shape", tokenizer)


def docstrings() -> Iterator[str]:
    """Collect the docstrings of Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(root.rglob("*.py")):
        if _OTHERS & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        yield from (text for text in found if text)


def _write(path: Path, texts: list[str]) -> None:
    path.write_text(json.dumps(texts), encoding="utf-8")


def _write_gpt2_shape(folder: Path, tokenizer: Any) -> None:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=len(tokenizer))).save_pretrained(folder)
    for path in Path(tokenizer.name_or_path).glob("tokenizer*.json"):
        shutil.copy(path, folder)


def some_docstrings(work: Path, count: int) -> list[str]:
    """Draw docstrings, always the same ones; the order is random, so that any part is like all."""
    texts = json.loads((work / "docstrings.json").read_text(encoding="utf-8"))
    return random.Random(0).sample(texts, len(texts))[:count]


def sentences(work: Path, count: int) -> list[str]:
    """Give numbered first sentences of docstrings."""
    texts = json.loads((work / "sentences.json").read_text(encoding="utf-8"))
    return [f"{number} {texts[number % len(texts)]}" for number in range(count)]


def random_ids(count: int) -> list[dict[str, Any]]:
    """Draw token ids for the model of GPT-2's shape."""
    draw = torch.randint(0, 2560, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row} for row in draw.tolist()]
