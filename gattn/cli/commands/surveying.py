"""The command that captures many texts into a folder: survey."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gattn.cli.arguments.captures import read_edits, read_keep
from gattn.cli.arguments.values import head_choice, layer_choice
from gattn.cli.terminal.collecting import collect_from_now_on
from gattn.cli.terminal.output import note, say
from gattn.errors import EditError, GattnError, SelectionError

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit
    from gattn.surveys.ask.reading import Survey
    from gattn.surveys.run.ray_pool import RayPool

ANALYSES = ("heads", "mixing", "ranks", "spectral", "templates", "topology")
"""The names in `gattn.surveys.run.analyses`, which is not loaded for --help."""

_MOST_REASONS = 3
_REASONS = r"""
select min(reason) as reason, count(*) as failed from failures
group by regexp_replace(reason, '\d+', '', 'g') order by failed desc, reason
"""
"""Reasons that differ only in their numbers count as one."""


def run_survey(options: argparse.Namespace) -> None:
    """Capture many texts into a folder and print a summary."""
    begun = time.monotonic()
    from gattn.surveys.inputs.inputs import read_files

    inputs = read_files(options.inputs, options.column)  # Before torch and transformers load.
    chosen: dict[str, Any] = {
        "keep": read_keep(options.keep),
        "layers": layer_choice(options.layers),
        "heads": _read_heads(options.heads),
        "contributions": _read_contributions(options.contributions),
        "analyses": _read_names(options.analyses),
    }
    _refuse_restrict(options)
    say("loading the libraries ...")
    from gattn.surveys.run.running import survey

    chosen["analyses"] = _analyses(chosen["analyses"])
    chosen |= {"edits": _made_edits(options), "ray": _pool(options)}
    say("")
    held = _held(options.out)
    plain = ("out", "scores", "analyse", "most_tokens", "column", "limit", "sample", "seed")
    chosen |= {name: getattr(options, name) for name in plain}
    collect_from_now_on()
    try:
        made = survey(inputs, options.model, **chosen, progress=sys.stderr.isatty())
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(_stopped(options.out)) from stop
    _print_survey(made, options.out, held, time.monotonic() - begun)


def _read_heads(text: str | None) -> list[int] | list[tuple[int, int]] | None:
    stack, heads = head_choice(text)
    if stack is not None:
        raise SelectionError(f"--heads applies to every stack: leave out {stack}: in {text!r}.")
    return heads


def _read_contributions(name: str | None) -> bool | Literal["value"]:
    return "value" if name == "value" else name == "output"


def _read_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ANALYSES]:
        raise SelectionError(f"--analyses takes {', '.join(ANALYSES)}, not {unknown[0]!r}.")
    return list(dict.fromkeys(names))


def _analyses(names: Sequence[str]) -> list[Any]:
    from gattn.surveys.run import analyses

    return [analyses.ANALYSES[name] for name in names]


def _refuse_restrict(options: argparse.Namespace) -> None:
    if any(option == "--restrict" for option, _ in options.edits):
        raise EditError(
            "--restrict needs the number of tokens, which differs between the texts of a survey: "
            "cut edges instead, as in --cut '5.1:9<-4'."
        )


def _made_edits(options: argparse.Namespace) -> list[Edit]:
    """Make the edits for a model; none that a survey allows depends on the length of the text."""
    makes = read_edits(options)
    if not makes:
        return []
    from gattn.models.load.limits import text_config
    from gattn.surveys.run.settings import read_config

    config = text_config(read_config(options.model)[0])
    return [make(int(getattr(config, "num_attention_heads", 0) or 0), 0) for make in makes]


def _pool(options: argparse.Namespace) -> RayPool | None:
    if options.ray is None:
        if options.workers is not None or options.num_gpus is not None:
            raise SelectionError(
                "--workers and --num-gpus need a Ray cluster: add --ray auto or its address, or "
                "--ray local to start one on this machine."
            )
        return None
    from gattn.surveys.run.ray_pool import RayPool

    address = None if options.ray == "local" else options.ray
    return RayPool(address, options.workers, options.num_gpus or 0)


def _stopped(folder: Path) -> str:
    """Return how far a survey got before it was stopped."""
    from gattn.surveys.store.manifest import read_manifest
    from gattn.surveys.store.parts import count_texts

    try:
        manifest = read_manifest(folder)
        count = count_texts(folder)
    except GattnError:
        return "stopped"
    if manifest is None:
        return f"stopped; {folder} holds no texts yet"
    total = manifest["num_texts"]
    return f"stopped; {folder} holds {count:,} of {total:,} texts; run the same command to resume"


def _held(folder: Path) -> int:
    """Count the texts, failed ones too, that a folder holds before the survey goes on."""
    from gattn.surveys.store.parts import count_texts

    return count_texts(folder) if folder.is_dir() else 0


def _print_survey(survey: Survey, folder: Path, held: int, seconds: float) -> None:
    edges = survey.sql("select coalesce(sum(num_edges), 0) as edges from texts")["edges"].item()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    total = int(survey.manifest["num_texts"])
    ran = f"{seconds:,.0f} s"
    if held == total:
        ran = "complete before, so nothing was run"
    elif held:
        ran = f"{total - held:,} of them in {ran} now"
    note(f"{folder}: {_counted(len(survey))}, {int(edges):,} edges, {size / 1e6:,.1f} MB, {ran}")
    reasons = survey.sql(_REASONS)
    if len(reasons):
        print(f"{_counted(int(reasons['failed'].sum()))} failed:")
    for row in reasons[:_MOST_REASONS].itertuples():
        print(f"  {row.failed:,} x {' '.join(str(row.reason).split())[:200]}")
    if (rest := len(reasons) - _MOST_REASONS) > 0:
        print(f"  and {rest:,} more reasons, in the table failures")
    query = "select layer, head, avg(kept) from heads group by all order by all"
    print(f'next: gattn query {shlex.quote(str(folder))} "{query}"')


def _counted(texts: int) -> str:
    return f"{texts:,} text" + "s" * (texts != 1)
