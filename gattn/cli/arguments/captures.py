"""Turns arguments into models, traces, keeps and edits."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from gattn.cli.arguments.edits import Make, read_edit
from gattn.cli.terminal.collecting import collect_from_now_on
from gattn.cli.terminal.output import say
from gattn.errors import CaptureError, GattnError, SelectionError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.heads.head import AttentionGraph
    from gattn.heads.trace import AttentionTrace
    from gattn.keep import Keep
    from gattn.models.edit.base import Edit

Loaded: TypeAlias = "tuple[str, PreTrainedModel, PreTrainedTokenizerBase]"

KEEPS = "all, threshold:T, topk:K, topmass:P"


def load(options: argparse.Namespace) -> Loaded:
    """Load the text, the model and its tokenizer."""
    text = _standard_input() if options.text == "-" else options.text
    say("loading the libraries ...")
    from huggingface_hub.utils.logging import set_verbosity

    set_verbosity(logging.ERROR)
    from gattn.models.load.loading import load_model
    from gattn.models.load.offline import EMBEDDED

    say(f"loading the model {options.model or EMBEDDED} ...")
    model, tokenizer = load_model(options.model)
    collect_from_now_on()
    return text, model, tokenizer


def _standard_input() -> str:
    if sys.stdin is None:
        raise CaptureError("Standard input is closed: pass the text as an argument, or pipe it in.")
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise CaptureError(
            f"Standard input is not valid text: {error}. If it is UTF-8, set "
            "PYTHONIOENCODING=utf-8."
        ) from error


def captured(
    options: argparse.Namespace, loaded: Loaded | None = None, **extras: Any
) -> AttentionTrace:
    """Capture the layer, head and edges that the options name."""
    keep = read_keep(options.keep) if options.keep else None
    text, model, tokenizer = loaded or load(options)
    from gattn.models.run.capturing import capture, capturing

    say("capturing ...")
    what: dict[str, Any] = extras | {
        "keep": keep,
        "layers": None if options.layer is None else [options.layer],
        "heads": None if options.head is None else [options.head],
    }
    if options.generate is None:
        trace = capture(text, model, tokenizer, **what)
    else:
        with capturing(model, tokenizer, **what) as run:
            _generate(text, model, tokenizer, options.generate)
        trace = run.trace
    say("")
    return trace


def _generate(
    text: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int
) -> None:
    from gattn.models.load.encoding import encode, pad, room_after

    if not model.can_generate():
        raise CaptureError(f"{type(model).__name__} cannot generate text: leave out --generate.")
    # The last generated token never enters the model, so one more makes the trace complete.
    encoding = encode(text, model, tokenizer)
    room = room_after(encoding, model)
    if room is not None and tokens > room:
        raise CaptureError(
            f"--generate {tokens} is more than the model can take after the {len(encoding)} tokens "
            f"of the text: generate at most {room}."
        )
    inputs = pad([encoding], tokenizer.pad_token_id or 0)
    generate = cast("Callable[..., object]", model.generate)
    generate(**inputs, max_new_tokens=tokens + 1, do_sample=False)


def is_one_head(options: argparse.Namespace) -> bool:
    """Return whether --layer and --head choose a single head."""
    return options.layer is not None and options.head is not None


def chosen(options: argparse.Namespace) -> AttentionTrace | AttentionGraph:
    """Capture, and take the one head if one is chosen."""
    trace = captured(options)
    return trace[options.layer, options.head] if is_one_head(options) else trace


def read_keep(rule: str) -> Keep:
    """Read which edges to keep."""
    from gattn.keep import All, Threshold, TopK, TopMass

    name, _, number = rule.partition(":")
    try:
        if name == "threshold":
            return Threshold(float(number))
        if name == "topk":
            return TopK(int(number))
        if name == "topmass":
            return TopMass(float(number))
    except ValueError as error:
        if isinstance(error, GattnError):
            raise
        name = ""
    if name != "all" or number:
        raise SelectionError(f"--keep is one of {KEEPS}, not {rule!r}.")
    return All()


def read_edits(options: argparse.Namespace) -> list[Make]:
    """Read the edits before anything is loaded."""
    return [
        read_edit(option, text, renormalize=options.renormalize) for option, text in options.edits
    ]


def edit_labels(options: argparse.Namespace) -> list[str]:
    """Name each edit as the user wrote it."""
    after = "" if options.renormalize else " without renormalizing"
    return [
        f"{option[2:]} {text}{after if option == '--cut' else ''}" for option, text in options.edits
    ]


def made_edits(makes: Sequence[Make], loaded: Loaded) -> list[Edit]:
    """Make the edits for a model and a text."""
    from gattn.models.load.encoding import encode
    from gattn.models.load.limits import text_config

    config = text_config(loaded[1].config)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    return [make(heads, len(encode(*loaded))) for make in makes]


def edited_model(makes: Sequence[Make], loaded: Loaded) -> AbstractContextManager[object]:
    """Apply the edits to the model, as a context."""
    from gattn.models.run.editing import edited

    _, model, tokenizer = loaded
    return edited(model, *made_edits(makes, loaded), tokenizer=tokenizer)
