"""The commands that draw: draw, view, heads, compare."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from functools import partial
from typing import TYPE_CHECKING, Any

from gattn.cli.arguments.captures import (
    Loaded,
    captured,
    chosen,
    edit_labels,
    edited_model,
    is_one_head,
    load,
    read_edits,
)
from gattn.cli.arguments.values import head_choice
from gattn.cli.terminal.output import (
    note,
    print_notes,
    print_table,
    save_drawing,
    save_table,
    without_single_stack,
)
from gattn.errors import CaptureError, EditError, SelectionError

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.heads.trace import AttentionTrace

HEAD_COLUMNS = (
    "key_value_head",
    "entropy",
    "mean_distance",
    "previous_token",
    "first_token",
    "same_token",
    "induction",
    "outside_sink",
    "kept",
    "label",
)
"""The columns of the head table that fit on a line."""
_TRIED = 40
"""The characters of the text used to try what a model can capture."""
_MOST_PAIRS = 2_000_000
"""The pairs of tokens, over all heads, up to which a page shows more than attention."""


def run_draw(options: argparse.Namespace) -> None:
    """Draw all heads, or one."""
    is_overlay = bool(options.layout and options.heads)
    if options.layout and not (is_overlay or is_one_head(options)):
        raise SelectionError(
            "--layout is for one head, chosen with --layer and --head, or for several in one view, "
            "chosen with --heads; `gattn heads TEXT` describes all heads."
        )
    if is_overlay and (options.sort or options.label):
        raise SelectionError(
            "--sort and --label are for matrices side by side: leave out --layout."
        )
    order = _order(options)
    shown: Any = chosen(options)
    drawn = partial(shown.draw, **order)
    if is_one_head(options):
        drawn = partial(shown.draw, options.layout or "arcs")
    elif is_overlay:
        drawn = partial(shown.draw_overlay, options.layout, heads=options.heads)
    save_drawing(drawn, options.output, options.style, options.figsize)
    print(f"{options.output}: {shown!r}")


def _order(options: argparse.Namespace) -> dict[str, Any]:
    """Read which heads to draw, in which order and with which labels."""
    is_one = is_one_head(options)
    if is_one and (options.heads or options.sort or options.label):
        raise SelectionError(
            "--layer and --head draw one head: for a larger matrix of it use --heads "
            f"{options.layer}.{options.head}; --sort and --label are for several heads."
        )
    stack, heads = head_choice(options.heads)
    if is_one:
        heads = [(options.layer, options.head)]
    return {"heads": heads, "stack": stack, "sort": options.sort, "label": options.label}


def run_view(options: argparse.Namespace) -> None:
    """Write a page and open it."""
    if options.generate is not None and (options.edits or options.generate < 1):
        raise EditError(
            "--generate takes at least 1 token, and no edits: edits can change what is generated, "
            "and before and after must have the same tokens."
        )
    makes = read_edits(options)
    loaded = load(options)
    extras = _extras(options, loaded)
    trace, after, said = captured(options, loaded, **extras), None, ", ".join(edit_labels(options))
    if makes:
        with edited_model(makes, loaded):
            after = captured(options, loaded, **extras)
    trace.to_html(options.output, other=after, edits=said)
    size = options.output.stat().st_size / 1e6
    print(f"{options.output}: {trace!r}{f'; after: {said}' if said else ''}, {size:.1f} MB")
    if options.opens and _has_display():
        webbrowser.open(options.output.absolute().as_uri())


def _extras(options: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    """Choose to capture scores and contributions if they are known and the page stays small."""
    from gattn.models.load.encoding import encode
    from gattn.models.load.limits import text_config

    text, model, tokenizer = loaded
    config = text_config(model.config)
    tokens = len(encode(*loaded)) + (options.generate or 0)
    layers = getattr(config, "num_hidden_layers", 1) if options.layer is None else 1
    heads = getattr(config, "num_attention_heads", 1) if options.head is None else 1
    if (pairs := tokens**2 * layers * heads) > _MOST_PAIRS:
        note(f"{pairs:,} pairs of tokens: the page shows attention, no scores or contributions")
        return {}
    prompt = argparse.Namespace(**vars(options) | {"generate": None})
    full: dict[str, Any] = {"scores": True, "contributions": True}
    reason = ""
    for extras in (full, full | {"contributions": "value"}, {"scores": True}, {}):
        try:
            captured(prompt, (text[:_TRIED], model, tokenizer), **extras)
        except CaptureError as error:
            reason = reason or f"the page shows less than it could: {error}"
        else:
            break
    if reason:
        note(reason)
    return extras


def _has_display() -> bool:
    """Return whether there is a screen for a browser; without one it would take the terminal."""
    return sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def run_heads(options: argparse.Namespace) -> None:
    """Describe every head in one row."""
    from gattn.analysis.heads.head_table import head_table

    table = head_table(captured(options), progress=sys.stderr.isatty())
    shown = table if options.all else table[[n for n in HEAD_COLUMNS if n in table]]
    print(without_single_stack(shown).round(3).reset_index().to_string(index=False))
    print_notes(table.notes)
    if options.output:
        save_table(table, options.output)
        print(f"{options.output}: {len(table)} heads, {len(table.columns)} columns")


def run_compare(options: argparse.Namespace) -> None:
    """Show what edits change, or match the heads of two models."""
    if bool(options.edits) == bool(options.other_model):
        raise EditError(
            "compare takes at least one edit, such as --cut 5.1 or --swap cosine, or another "
            "model, --with NAME, but not both."
        )
    order = _order(options)
    if options.other_model:
        if any(order.values()):
            raise SelectionError(
                "--heads, --sort and --label need a comparison before and after edits: another "
                "model's heads are not in the same places."
            )
        _match(options)
        return
    makes = read_edits(options)
    loaded = load(options)
    from gattn.analysis.heads.compare import compare

    before = captured(options, loaded)
    with edited_model(makes, loaded):
        after = captured(options, loaded)
    _print_comparison(compare(before, after), options.keep)
    _print_prediction(before, after, *loaded[1:])
    said = ", ".join(edit_labels(options))
    drawn = partial(before.draw, other=after, edits=said, **order)
    save_drawing(drawn, options.output, options.style, options.figsize)
    print(f"{options.output}: {said}")


def _match(options: argparse.Namespace) -> None:
    """Find the most similar head of another model for each head."""
    from gattn.analysis.heads.head_distances import head_distances
    from gattn.analysis.heads.head_table import head_table

    other_options = argparse.Namespace(**vars(options) | {"model": options.other_model})
    one, other = captured(options), captured(other_options)
    distances = head_distances(one, other, progress=sys.stderr.isatty())
    labels, other_labels = (
        dict(zip(distances[axis].to_numpy(), head_table(trace).label, strict=True))
        for axis, trace in (("head", one), ("other", other))
    )
    nearest = distances.idxmin("other").to_series()
    table = nearest.rename("nearest").to_frame()
    table["distance"] = distances.min("other").to_series()
    table["label"] = [labels[name] for name in table.index]
    table["nearest_label"] = [other_labels[name] for name in nearest]
    print_table(table.reset_index())
    print_notes(distances.notes)
    save_drawing(distances.draw, options.output, options.style, options.figsize)
    print(f"{options.output}: {distances.computed_from}")


def _print_comparison(table: pd.DataFrame, keep: str | None) -> None:
    from gattn.analysis.heads.divergences import FARTHEST
    from gattn.names.text import visible

    shown = without_single_stack(table).reset_index()
    shown = shown.astype(object).where(shown.notna(), "")
    for name in ("query_token", "key_token"):
        shown[name] = [token and visible(str(token)) for token in shown[name]]
    print_table(shown)
    print(
        f"distance: Jensen-Shannon, base e, mean over queries, at most {FARTHEST:.3f}; entropy in "
        "nats; edge_change: after - before, of the edge that changed most"
    )
    if keep:
        print(f"computed from the edges kept by {keep}")


def _print_prediction(
    before: AttentionTrace,
    after: AttentionTrace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    import torch

    from gattn.names.text import quoted

    is_next = before.predictions is not None and before.predictions.shift == 1
    if before.logits is None or after.logits is None or not is_next:
        print(f"next token: none, {type(model).__name__} does not predict one")
        return
    logits = (before.logits, after.logits)
    one, other = (some[-1].double().cpu().log_softmax(-1) for some in logits)
    divergence = float(torch.where(one > -torch.inf, one.exp() * (one - other), 0).sum())
    print(f"next token: KL divergence {divergence:.4g} nats")
    for name, logarithms in (("before", one), ("after", other)):
        best = logarithms.topk(min(3, len(logarithms)))
        tokens = [
            f"{quoted(str(tokenizer.decode([token])), is_entry=True)} {value:.3f}"
            for value, token in zip(best.values.exp().tolist(), best.indices.tolist(), strict=True)
        ]
        print(f"  {name:7}" + "   ".join(tokens))
