"""Runs surveys: part after part from the queue on the disk into the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gattn.analysis.heads import head_table
from gattn.errors import CaptureError, FileError
from gattn.keep import Keep, Threshold, as_keep
from gattn.models.capturing import Contributions
from gattn.surveys import queue
from gattn.surveys.capture import Analysis, CaptureGraphs
from gattn.surveys.columns import tables_of
from gattn.surveys.inputs import Inputs, read_inputs
from gattn.surveys.manifest import check_same, read_manifest, settings, write_manifest
from gattn.surveys.parts import FOLDERS, parts_in, remove_leftovers, write_part
from gattn.surveys.reading import Survey, open_survey

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel

    from gattn.models.edits import Edit
    from gattn.surveys.ray_pool import RayPool

    Capture = Callable[[pa.Table], pa.Table]

_OWN = {"inputs", "inputs.part", ".lock", *FOLDERS}
"""What a survey's folder holds beside its manifest."""


class Done(NamedTuple):
    """A part that is in the survey."""

    first: int
    texts: int
    edges: int
    reasons: tuple[str, ...]
    """Why texts failed, one each."""


def survey(
    texts: Any,
    model: str | Path | PreTrainedModel | None = None,
    *,
    out: str | PathLike[str],
    keep: Keep = Threshold(0.02),  # noqa: B008 - it never changes
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scores: bool = False,
    contributions: Contributions = False,
    analyses: Sequence[Analysis] = (head_table,),
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
        `gattn.surveys.inputs.read_inputs`.
    model : str, Path or PreTrainedModel, optional
        A hub name, a folder or a model; by default the embedded model.
    out : path
        The folder. Where it holds a part of this very survey, only the rest is run.
    keep, layers, heads, scores, contributions, analyses, edits, most_tokens
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
        "layers": layers,
        "heads": heads,
        "scores": scores,
        "contributions": contributions,
        "analyses": list(analyses),
        "edits": list(edits),
        "most_tokens": most_tokens,
    }
    chosen = {"limit": limit, "sample": sample, "seed": seed}
    inputs = read_inputs(texts, column)
    asked = settings(model, options) | {"column": column, **chosen}
    folder = Path(out)
    with _alone(folder):
        manifest = _begun(folder, inputs, asked)
        todo = _left(folder)
        done: Iterable[Done] = ()
        if todo and ray is None:
            done = run_here(folder, todo, CaptureGraphs(model, **options))
        elif todo and ray is not None:
            from gattn.surveys.ray_pool import run_on_ray

            done = run_on_ray(ray, folder, todo, {"model": model, **options})
        left = sum(queue.read(folder, first).num_rows for first in todo)
        _follow(done, manifest["num_texts"], left, progress)
    return open_survey(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be, against other runs."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout as error:
        raise FileError(
            f"{folder} is being written by another process: wait for it, or name another folder."
        ) from error
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error}.") from error
    try:
        yield
    finally:
        lock.release()


def _begun(folder: Path, inputs: Inputs, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Give the manifest of the survey in a folder; where there is none yet, fill its queue."""
    known = read_manifest(folder)
    if known is not None:
        fingerprint = inputs.first(asked["limit"]).fingerprint
        check_same(folder, known, {**asked, "inputs": fingerprint})
        return known
    if strangers := {path.name for path in folder.iterdir()} - _OWN:
        raise FileError(
            f"{folder} is neither empty nor a survey: it holds {min(strangers)!r}. Name another "
            "folder."
        )
    chosen = {name: asked[name] for name in ("limit", "sample", "seed")}
    queued = queue.fill(folder, inputs, **chosen)
    manifest = {**asked, "inputs": queued.fingerprint, "num_texts": queued.num_texts}
    write_manifest(folder, manifest)
    return manifest


def _left(folder: Path) -> list[int]:
    """Put a folder in order after a run that was stopped, and list the parts that it left."""
    remove_leftovers(folder)
    known = set(parts_in(folder))
    for first in queue.parts(folder):
        if first in known:
            queue.done(folder, first)
    return queue.parts(folder)


def run_here(folder: Path, parts: Sequence[int], capture: Capture) -> Iterator[Done]:
    """Capture one part after the other, while the one before is written; yield what is written.

    No more than these two are in memory.
    """
    with ThreadPoolExecutor(1) as writer:
        written: Future[Done] | None = None
        for first in parts:
            rows = capture(queue.read(folder, first))
            if written is not None:
                yield written.result()
            written = writer.submit(finish, folder, first, rows)
        if written is not None:
            yield written.result()


def finish(folder: Path, first: int, rows: pa.Table) -> Done:
    """Write a part that was captured, and take it from the queue.

    Raises
    ------
    FileError
        Where the disk is full, or the folder cannot be written for another reason.
    """
    tables = tables_of(rows)
    try:
        write_part(folder, first, tables)
        queue.done(folder, first)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error}. What is in the survey is whole; make room and "
            "run the same again to go on."
        ) from error
    texts, failures = tables["texts"], tables.get("failures")
    reasons = () if failures is None else tuple(failures["reason"].to_pylist())
    return Done(first, len(texts), sum(texts["num_edges"].to_pylist()), reasons)


def _follow(done: Iterable[Done], total: int, left: int, progress: bool) -> None:
    """Show how far a run is, to its end.

    Raises
    ------
    CaptureError
        Where it captures nothing.
    """
    from tqdm import tqdm

    texts, reasons = 0, Counter[str]()
    with tqdm(
        total=total, initial=total - left, desc="survey", unit="text", disable=not progress
    ) as bar:
        for part in done:
            texts += part.texts
            reasons.update(part.reasons)
            if reasons:
                bar.set_postfix(failed=reasons.total(), refresh=False)
            bar.update(part.texts + len(part.reasons))
    if reasons and not texts:
        reason, count = reasons.most_common(1)[0]
        raise CaptureError(
            f"None of {reasons.total()} texts could be captured; of {count} the reason is: {reason}"
        )
