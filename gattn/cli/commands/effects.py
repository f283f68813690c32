"""The commands that measure what cutting edges changes: effect, estimate."""

from __future__ import annotations

import argparse
import sys
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from gattn.cli.arguments.captures import (
    Loaded,
    edit_labels,
    load,
    made_edits,
    read_edits,
    read_keep,
)
from gattn.cli.arguments.values import written_token
from gattn.cli.terminal.output import print_notes, print_table, save_drawing, save_table, say
from gattn.errors import EditError

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit

_MOST_ROWS = 20


def run_effect(options: argparse.Namespace) -> None:
    """Measure how edits change the prediction."""
    if bool(options.edits) == options.each_head:
        raise EditError(
            "effect needs either edits, such as --cut 5.1 or --cut '5.1:9<-4', or --each-head, "
            "which cuts each head in turn" + (", not both." if options.edits else ".")
        )
    makes = read_edits(options)
    loaded = load(options)
    from gattn.models.effects.effect import effect

    rows: list[Any]
    if options.each_head:
        labels, rows = _each_head(loaded)
    else:
        labels, rows = edit_labels(options), made_edits(makes, loaded)
    if options.together:
        labels, rows = [", ".join(labels)], [rows]
    text, model, tokenizer = loaded
    table = effect(
        text,
        rows,
        model,
        tokenizer,
        metric=options.metric,
        **answer(options),
        progress=sys.stderr.isatty(),
    )
    table["edit"] = labels
    columns = ["edit", "plain", "edited", "effect"]
    print_table(table[columns], ".4g")
    if options.output:
        save_table(table, options.output, index=False)


def run_estimate(options: argparse.Namespace) -> None:
    """Estimate what cutting each edge changes."""
    keep = read_keep(options.keep) if options.keep else None
    loaded = load(options)
    from gattn.models.effects.estimates import estimate
    from gattn.names.text import visible

    say("estimating ...")
    table = estimate(
        *loaded,
        metric=options.metric,
        **answer(options),
        keep=keep,
        layers=None if options.layer is None else [options.layer],
        heads=None if options.head is None else [options.head],
        renormalize=options.renormalize,
        sample=options.sample,
        progress=sys.stderr.isatty(),
    )
    say("")
    largest = table.reindex(table["estimate"].abs().sort_values(ascending=False).index)
    shown = largest.head(_MOST_ROWS).drop(columns="sampled")
    if shown["stack"].nunique() == 1:
        shown = shown.drop(columns="stack")
    for side in ("query", "key"):
        shown[f"{side}_token"] = shown[f"{side}_token"].map(visible)
    shown["effect"] = shown["effect"].astype(object).where(shown["effect"].notna(), "")
    print(f"what cutting an edge adds to the {table.attrs['metric']}")
    print_table(shown, ".4g")
    if left := len(table) - len(shown):
        print(f"and {left:,} more, which -o estimates.csv includes")
    if isfinite(correlation := table.attrs.get("correlation", nan)):
        print(f"correlation of estimates with measured effects: {correlation:.2f}")
    print_notes(table.attrs["notes"])
    if options.output:
        if options.output.suffix.lower() == ".csv":
            save_table(table, options.output, index=False)
        else:
            save_drawing(table.draw, options.output, options.style, options.figsize)
        print(f"{options.output}: {len(table):,} edges")


def answer(options: argparse.Namespace) -> dict[str, Any]:
    """Read where and of which tokens the answer is measured."""
    position = options.position
    return {
        "position": None if position is None else written_token(position),
        "target": _one_or_more(options.target),
        "other": _one_or_more(options.other),
    }


def _one_or_more(given: list[str] | None) -> str | list[str] | None:
    """Take a single token out of its list, so that errors name it as it was given."""
    return given[0] if given is not None and len(given) == 1 else given


def _each_head(loaded: Loaded) -> tuple[list[str], list[Edit]]:
    """Make a cut of each head that a capture finds."""
    from gattn.keep import TopK
    from gattn.models.edit.edges import Cut
    from gattn.models.run.capturing import capture

    trace = capture(*loaded, keep=TopK(1))
    places = [(name, *place) for name, stack in trace.stacks.items() for place in sorted(stack)]
    labels = [f"cut {layer}.{head}" for _, layer, head in places]
    if len(trace.stacks) > 1:
        labels = [f"cut {stack}:{layer}.{head}" for stack, layer, head in places]
    return labels, [Cut(layer, head, stack=stack) for stack, layer, head in places]
