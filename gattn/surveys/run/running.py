"""Runs surveys: part after part from the queue on the disk into the dataset."""

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
from gattn.keep import Keep, Threshold, as_keep
from gattn.models.run.options import Contributions
from gattn.names.choices import Chosen, HeadChoice, LayerChoice
from gattn.surveys.ask.reading import Survey, open_survey
from gattn.surveys.inputs.inputs import Inputs, read_inputs
from gattn.surveys.run.capture_graphs import Analysis, CaptureGraphs, checked
from gattn.surveys.run.local import Done, run_here
from gattn.surveys.run.ray_pool import RayPool, check_for_ray, run_on_ray
from gattn.surveys.store import queue
from gattn.surveys.store.holding import alone, writing
from gattn.surveys.store.manifest import check_same, read_manifest, settings, write_manifest
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
"""How many texts the model may fail on before it captures one: then the texts are not to blame."""


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
    """Capture many texts into a folder of Parquet files, and go on where an earlier run stopped.

    Parameters
    ----------
    texts : iterable, path or list of paths
        Texts, rows with a text, token ids, or files of them: see
        `gattn.surveys.inputs.inputs.read_inputs`.
    model : str, Path or PreTrainedModel, optional
        A hub name, a folder or a model; by default the embedded model.
    out : path
        The folder. Where it holds a part of this very survey, only the rest is run.
    keep, layers, heads, scores, contributions, analyses, analyse, edits, most_tokens
        As `CaptureGraphs` takes them.
    column : str
        The column of rows that holds the text.
    limit : int, optional
        Only the first so many texts.
    sample, seed : int, optional
        Only so many texts, drawn without replacement by NumPy's generator with this seed.
    ray : RayPool, optional
        Runs on a Ray cluster; by default in this process.
    progress : bool
        Whether to show a progress bar on stderr, with texts per second and the time left.

    Returns
    -------
    Survey
        The dataset, open to read. Texts that could not be captured are in its `failures`.

    Raises
    ------
    FileError
        Where inputs cannot be read, the folder cannot be written or holds another survey.
    CaptureError
        Where no text at all could be captured.
    ModelError, SelectionError
        As `gattn.capture` does.
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
    folder = Path(out)
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
    """Give the manifest of the survey in a folder; where nothing is in it yet, begin it."""
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
    """Put a folder in order after a run that was stopped, and list the parts that it left."""
    with writing(folder):
        remove_leftovers(folder)
        known = set(parts_in(folder))
        for first in queue.parts(folder):
            if first in known:
                queue.done(folder, first)
    return queue.parts(folder)


def _check_whole(folder: Path, num_texts: int) -> None:
    """Check that no text was lost.

    Raises
    ------
    FileError
        Where one is neither in the survey nor was left to do.
    """
    if (count := count_texts(folder)) < num_texts:
        raise FileError(
            f"{folder} holds {count:,} of {num_texts:,} texts, and those left to do are no longer "
            f"in {folder / queue.FOLDER}: write the survey again, in another folder."
        )


def _follow(
    folder: Path, done: Iterator[Done], total: int, todo: Sequence[int], progress: bool
) -> None:
    """Show how far a run is, to its end.

    Raises
    ------
    CaptureError
        Where no text at all is captured.
    """
    from tqdm import tqdm

    left = sum(queue.count(folder, first) for first in todo)
    has_text, faults, reasons = has_texts(folder), 0, Counter[str]()
    with tqdm(
        total=total, initial=total - left, desc="survey", unit="text", disable=not progress
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
            f"None of {reasons.total():,} texts could be captured; of {count:,} the reason is: "
            f"{reason}" + (f" The other {rest:,} are left to do." if rest else "")
        )
