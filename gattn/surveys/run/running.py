"""Runs surveys: part by part, from the queue on disk into the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gattn.analysis.heads.head_table import head_table
from gattn.checks import whole
from gattn.errors import CaptureError, FileError
from gattn.files.whole_files import as_path
from gattn.keep import Keep, Threshold, as_keep
from gattn.models.run.options import Contributions
from gattn.names.choices import Chosen, HeadChoice, LayerChoice
from gattn.surveys.ask.reading import Survey, open_survey
from gattn.surveys.inputs.inputs import Inputs, read_inputs
from gattn.surveys.run.capture_graphs import Analysis, CaptureGraphs, checked
from gattn.surveys.run.local import Done, run_here
from gattn.surveys.run.ray_pool import RayPool, check_for_ray, run_on_ray
from gattn.surveys.run.settings import settings
from gattn.surveys.store import queue
from gattn.surveys.store.holding import alone, writing
from gattn.surveys.store.manifest import check_same, read_manifest, write_manifest
from gattn.surveys.store.parts import (
    count_texts,
    has_texts,
    parts_in,
    remove_leftovers,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from gattn.models.edit.base import Edit

_PATIENCE = 128
"""How many texts may fail before any is captured; then the texts are not at fault."""


def survey(
    texts: Any,
    model: str | Path | PreTrainedModel | None = None,
    *,
    out: str | PathLike[str],
    keep: Keep = Threshold(0.02),  # noqa: B008 - it never changes
    layers: LayerChoice = None,
    heads: HeadChoice = None,
    scores: bool = False,
    contributions: Contributions = False,
    analyses: Sequence[Analysis] = (head_table,),
    analyse: Literal["all", "kept"] = "all",
    edits: Sequence[Edit] = (),
    most_tokens: int = 4096,
    column: str = "text",
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    ray: RayPool | None = None,
    progress: bool = True,
) -> Survey:
    """Capture many texts into a folder of Parquet files; interrupted runs resume.

    Parameters
    ----------
    texts : iterable, path or list of paths
        Texts, rows with a text, token ids, or files: see
        `gattn.surveys.inputs.inputs.read_inputs`.
    model : str, Path or PreTrainedModel, optional
        A hub name, a folder or a model; by default the embedded model.
    out : path
        The folder. If it already holds parts of the same survey, only the rest is run.
    keep, layers, heads, scores, contributions, analyses, analyse, edits, most_tokens
        As `CaptureGraphs` takes them.
    column : str
        The column of rows that holds the text.
    limit : int, optional
        Only the first `limit` texts.
    sample, seed : int, optional
        Only `sample` texts, drawn without replacement by NumPy's generator with this seed.
    ray : RayPool, optional
        Run on a Ray cluster; by default in this process.
    progress : bool
        Whether to show a progress bar on stderr, with texts per second and the time left.

    Returns
    -------
    Survey
        The survey, open to read. Texts that could not be captured are in its `failures`.

    Raises
    ------
    FileError
        If the inputs cannot be read, or the folder is not writable or holds another survey.
    CaptureError
        If no text at all could be captured.
    ModelError, SelectionError
        As in `gattn.capture`.
    """
    options: dict[str, Any] = {
        "keep": as_keep(keep),
        **Chosen.of(layers, heads).written(),
        "scores": scores,
        "contributions": contributions,
        "analyses": checked(analyses),
        "analyse": analyse,
        "edits": list(edits),
        "most_tokens": whole("most_tokens", most_tokens, 1, CaptureError),
    }
    if ray is not None:
        check_for_ray({"model": model, **options})
    chosen = {
        "limit": queue.at_least_one("limit", limit),
        "sample": queue.at_least_one("sample", sample),
        "seed": whole("seed", seed, 0, FileError),
    }
    inputs = texts if isinstance(texts, Inputs) else read_inputs(texts, column)
    asked = settings(model, options) | {"column": column, **chosen}
    folder = as_path(out, "survey")
    with alone(folder):
        manifest = _begun(folder, inputs, asked)
        todo = _left(folder)
        if todo:
            with closing(_running(folder, todo, {"model": model, **options}, ray)) as done:
                _follow(folder, done, manifest["num_texts"], todo, progress)
        _check_whole(folder, manifest["num_texts"])
    return open_survey(folder)


def _running(
    folder: Path, parts: Sequence[int], options: Mapping[str, Any], ray: RayPool | None
) -> Generator[Done, None, None]:
    if ray is None:
        yield from run_here(folder, parts, CaptureGraphs(**options))
    else:
        yield from run_on_ray(ray, folder, parts, options)


def _begun(folder: Path, inputs: Inputs, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Read the manifest of the survey in a folder, or begin the survey if there is none."""
    known = read_manifest(folder)
    if known is not None and parts_in(folder):
        fingerprint = inputs.first(asked["limit"]).fingerprint
        check_same(folder, known, {**asked, "inputs": fingerprint})
        return known
    chosen = {name: asked[name] for name in ("limit", "sample", "seed")}
    heads = (asked["num_layers"] or 1) * (asked["num_heads"] or 1)
    most = queue.characters_of_a_part(heads)
    queued = queue.fill(folder, inputs, **chosen, most_characters=most)
    manifest = {**asked, "inputs": queued.fingerprint, "num_texts": queued.num_texts}
    with writing(folder):
        write_manifest(folder, manifest)
    return manifest


def _left(folder: Path) -> list[int]:
    """Clean up after an interrupted run, and list the parts that are still to do."""
    with writing(folder):
        remove_leftovers(folder)
        known = set(parts_in(folder))
        for first in queue.parts(folder):
            if first in known:
                queue.done(folder, first)
    return queue.parts(folder)


def _check_whole(folder: Path, num_texts: int) -> None:
    """Check that no text was lost."""
    if (count := count_texts(folder)) < num_texts:
        raise FileError(
            f"{folder} holds {count:,} of {num_texts:,} texts, and the others are no longer in "
            f"{folder / queue.FOLDER}: run the survey again, in another folder."
        )


def _follow(
    folder: Path, done: Iterator[Done], total: int, todo: Sequence[int], progress: bool
) -> None:
    """Show the progress of a run; end it if no text at all can be captured."""
    from tqdm import tqdm

    left = sum(queue.count(folder, first) for first in todo)
    has_text, faults, reasons = has_texts(folder), 0, Counter[str]()
    with tqdm(
        total=total, initial=total - left, desc="survey", unit=" text", disable=not progress
    ) as bar:
        for part in done:
            has_text, faults = has_text or part.texts > 0, faults + part.faults
            reasons.update(part.reasons)
            if reasons:
                bar.set_postfix(failed=reasons.total(), refresh=False)
            bar.update(part.texts + len(part.reasons))
            if not has_text and faults >= _PATIENCE:
                break
    if reasons and not has_text:
        reason, count = reasons.most_common(1)[0]
        rest = left - reasons.total()
        raise CaptureError(
            f"None of {reasons.total():,} texts could be captured; for {count:,} the reason is: "
            f"{reason}" + (f" The other {rest:,} are still to do." if rest else "")
        )
