"""Captures batches of texts, from any engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa
import torch

from gattn.analysis.heads.head_table import head_table
from gattn.checks import whole
from gattn.engines.tensors.memory import return_freed_memory
from gattn.errors import CaptureError, GattnError, ModelError, SelectionError
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import All, Keep, Threshold, as_keep
from gattn.models.load.encoding import Encoding, encode
from gattn.models.load.loading import resolved
from gattn.models.run.capturing import capture_encoded
from gattn.models.run.editing import edited
from gattn.models.run.options import Contributions, Options
from gattn.names.choices import HeadChoice, LayerChoice
from gattn.progress import silence
from gattn.surveys.run.batches import Batch, Row, rows_of
from gattn.surveys.run.summing import SummedTexts
from gattn.surveys.store.scores import Scores, scores_of
from gattn.surveys.store.text_rows import failed_row, joined, text_row

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

    from gattn.models.edit.base import Edit

Analysis: TypeAlias = "Callable[[AttentionTrace], pd.DataFrame]"
"""Takes a trace and gives a table with one row per head, by ``layer`` and ``head``."""

_Analysis: TypeAlias = "Analysis | Callable[[AttentionTrace], Scores]"
_Captured: TypeAlias = "tuple[AttentionTrace, Sequence[_Analysis], Keep | None]"

_IDS = ("input_ids", "decoder_input_ids")
_FAULTS_OF_ALL = (ModelError, SelectionError, OSError, torch.AcceleratorError)
"""Errors that are not the fault of one text; they end the survey."""


_BATCH_BYTES, _MOST_BYTES = 1 << 28, 1 << 30
"""How much memory all edges of a batch, and of one text, may take before they are dropped."""


class CaptureGraphs:
    """Captures texts: a batch of columns in, a batch of columns with one row per text out.

    Call it, or pass it to an engine such as Ray Data's ``map_batches``, which makes one in each
    worker. The model is loaded once, in the constructor.

    Parameters
    ----------
    model : str, Path or PreTrainedModel, optional
        As in `gattn.capture`; a model loaded by name is moved to the GPU if there is one.
    keep : Keep
        Which edges to keep.
    layers, heads, scores, contributions
        As in `gattn.capture`.
    analyses : sequence of callables
        What to compute for heads: functions from a trace to a table with one row per head, indexed
        by ``layer`` and ``head`` (and ``stack``), such as `gattn.analysis.head_table`.
    analyse : "all" or "kept"
        Which edges analyses read: all, before any are dropped, or only the kept ones, which gives
        different scores if much was dropped. All edges are summed up for
        `gattn.analysis.head_table` while the model runs, on its device. For other analyses they
        have to be listed first, which takes long; those of one text may take up to 1 GiB.
    edits : sequence of Edit
        Edits of the model, as `gattn.edited` takes them. If an edit names tokens, a text without
        these tokens fails, and each text runs by itself.
    most_tokens : int
        The most tokens per batch, including padding; texts of similar length run together. A longer
        text runs by itself.

    Raises
    ------
    ModelError
        If the model cannot be loaded.

    Examples
    --------
    >>> capture = gattn.CaptureGraphs(keep=gattn.TopK(4))
    >>> capture({"text": ["The dog chased the cat", "The cat slept"]}).column_names
    ['text_id', 'text', 'metadata', 'reason', 'num_tokens', 'num_edges', 'edges', ...]
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        *,
        keep: Keep = Threshold(0.02),  # noqa: B008 - it never changes
        layers: LayerChoice = None,
        heads: HeadChoice = None,
        scores: bool = False,
        contributions: Contributions = False,
        analyses: Sequence[Analysis] = (head_table,),
        analyse: Literal["all", "kept"] = "all",
        edits: Sequence[Edit] = (),
        most_tokens: int = 4096,
    ) -> None:
        if analyse not in ("all", "kept"):
            raise CaptureError(f"analyse is 'all' or 'kept', not {analyse!r}.")
        self._keep = as_keep(keep)
        self._options = Options(keep, layers, heads, scores, contributions)
        self._analyses, self._edits = checked(analyses), list(edits)
        self._reads_all = analyse == "all" or isinstance(keep, All)
        self._sums_up = self._reads_all and head_table in self._analyses
        most_tokens = whole("most_tokens", most_tokens, 1, CaptureError)
        # An edit that finds none of its tokens is refused: for each text, not for a batch.
        self._most_tokens = 1 if any(map(_names_tokens, self._edits)) else most_tokens
        self._model, self._tokenizer = resolved(model, None)
        if (model is None or isinstance(model, (str, os.PathLike))) and torch.cuda.is_available():
            self._model.to("cuda")  # type: ignore[arg-type]

    def _drops(self, sums_up: bool) -> bool:
        """Return whether traces hold all edges at first, for analyses that are not summed up."""
        others = [one for one in self._analyses if one is not head_table or not sums_up]
        return bool(others) and self._reads_all and not isinstance(self._keep, All)

    def __call__(self, batch: Batch) -> pa.Table:
        """Capture texts.

        Parameters
        ----------
        batch : mapping of columns, DataFrame or Table
            ``text``, or token ids in ``input_ids`` (with ``decoder_input_ids`` for an
            encoder-decoder model), and optionally their numbers, ``text_id``. Other columns become
            ``metadata``, a JSON object per text.

        Returns
        -------
        Table
            One row per text, in the order of the batch, with ``text_id``, ``text``, ``metadata``,
            ``num_tokens``, ``num_edges``, and as lists of structs ``edges``, ``queries``, ``heads``
            and ``tokens``. A text that could not be captured has a ``reason`` instead, and no
            ``num_tokens`` if it failed before the model ran.
        """
        rows = rows_of(batch)
        found: dict[int, pa.Table] = {}
        encodings: dict[int, Encoding] = {}
        for number, row in enumerate(rows):
            try:
                encodings[number] = self._encoded(row)
            except _FAULTS_OF_ALL:
                raise
            except Exception as error:  # Tokenizers fail in many ways.
                found[number] = _failed(row, error)
        for numbers in self._batches(encodings):
            found |= self._captured(numbers, encodings, rows)
        return_freed_memory()
        return joined([found[number] for number in range(len(rows))])

    def _encoded(self, row: Row) -> Encoding:
        if row.get("reason") is not None:
            raise CaptureError(row["reason"])
        ids = {name: [row[name]] for name in _IDS if row.get(name) is not None}
        return encode(ids or row["text"], self._model, self._tokenizer)

    def _batches(self, encodings: Mapping[int, Encoding]) -> Iterator[list[int]]:
        """Group texts of similar length, the longest first."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for number in sorted(encodings, key=lambda number: -len(encodings[number])):
            alike.setdefault(tuple(sorted(encodings[number].tensors)), []).append(number)
        for numbers in alike.values():
            while numbers:
                count = max(1, self._most_tokens // len(encodings[numbers[0]]))
                if self._drops(self._sums_up):
                    size = self._options.size(self._model, [encodings[numbers[0]]])
                    count = max(1, min(count, _BATCH_BYTES // size))
                yield numbers[:count]
                numbers = numbers[count:]

    def _captured(
        self,
        numbers: Sequence[int],
        encodings: Mapping[int, Encoding],
        rows: Sequence[Row],
    ) -> dict[int, pa.Table]:
        """Capture texts together; if that fails, try each half, to find the texts at fault."""
        try:
            traces = self._traces([encodings[number] for number in numbers], self._sums_up)
        except _FAULTS_OF_ALL:
            raise
        except Exception as error:
            if len(numbers) == 1:
                (number,) = numbers
                return {number: _failed(rows[number], error, len(encodings[number]))}
            traces = None  # The error holds the batch's tensors; run the halves without it.
        if traces is None:
            half = len(numbers) // 2
            first = self._captured(numbers[:half], encodings, rows)
            return first | self._captured(numbers[half:], encodings, rows)
        return {
            number: self._row(rows[number], *traced, len(encodings[number]))
            for number, traced in zip(numbers, traces, strict=True)
        }

    def _traces(self, encodings: list[Encoding], sums_up: bool) -> list[_Captured]:
        """Capture texts together; with each comes what to compute of it, and what then to keep."""
        drops = self._drops(sums_up)
        if drops and (size := self._options.size(self._model, encodings)) > _MOST_BYTES:
            raise CaptureError(
                f"Analysing all edges of this text takes {size / 2**30:.1f} GiB: analyse only the "
                "'kept' edges, choose layers and heads, or shorten the text."
            )
        summed = SummedTexts(encodings) if sums_up else None
        seen, keep = (All(), self._keep) if drops else (self._keep, None)
        options = replace(self._options, keep=seen, onlooker=summed)
        with self._editing():
            traces = capture_encoded(encodings, self._model, self._tokenizer, options)
        if summed is None:
            return [(trace, self._analyses, keep) for trace in traces]
        if not all(starmap(summed.holds, enumerate(traces))):
            return self._traces(encodings, sums_up=False)  # It attends in windows, say.
        return [(trace, self._summed(summed, n), keep) for n, trace in enumerate(traces)]

    def _summed(self, summed: SummedTexts, text: int) -> list[_Analysis]:
        own = partial(summed.scores, text)
        return [own if one is head_table else one for one in self._analyses]

    def _editing(self) -> AbstractContextManager[object]:
        if not self._edits:
            return nullcontext()
        return edited(self._model, *self._edits, tokenizer=self._tokenizer)

    def _row(
        self,
        row: Row,
        trace: AttentionTrace,
        analyses: Sequence[_Analysis],
        keep: Keep | None,
        num_tokens: int,
    ) -> pa.Table:
        try:
            with silence():
                scores = scores_of([analysis(trace) for analysis in analyses], trace)
            if keep is not None:
                trace = _kept(trace, keep)
            return text_row(row["text_id"], trace, scores, row["metadata"])
        except OSError:
            raise
        except Exception as error:
            return _failed(row, error, num_tokens)


def checked(analyses: Sequence[Analysis]) -> list[Analysis]:
    """Check that analyses are functions."""
    if not isinstance(analyses, Iterable) or not all(map(callable, found := list(analyses))):
        raise CaptureError(
            "analyses must be a list of functions of a trace, such as [gattn.analysis.head_table], "
            f"not {analyses!r:.200}."
        )
    return found


def _kept(trace: AttentionTrace, keep: Keep) -> AttentionTrace:
    stacks = {
        name: Stack(stack.name, {place: head.keep(keep) for place, head in stack.items()})
        for name, stack in trace.stacks.items()
    }
    return replace(trace, stacks=stacks)


def _names_tokens(edit: Edit) -> bool:
    return any(getattr(edit, side, None) is not None for side in ("query", "key"))


def _failed(row: Row, error: Exception, num_tokens: int | None = None) -> pa.Table:
    reason = str(error) if isinstance(error, GattnError) else f"{type(error).__name__}: {error}"
    return failed_row(row["text_id"], row["text"], row["metadata"], reason, num_tokens)
