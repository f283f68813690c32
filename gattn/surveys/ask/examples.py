"""The texts of a survey in which a head has the most of a score, and a page of them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gattn import door
from gattn.analysis.reading.results import Table
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.load.loading import resolved
from gattn.names.places import list_places
from gattn.names.text import worded
from gattn.surveys.ask.definitions import definition_notes, definitions_of
from gattn.surveys.ask.finding import rows_of
from gattn.surveys.ask.predicted import predicted
from gattn.surveys.ask.sql import ask, quoted
from gattn.surveys.store.rebuilding import trace_of
from gattn.surveys.store.tables import files_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.keep import Keep
    from gattn.models.load.loading import Model
    from gattn.surveys.ask.reading import Survey

_BEST = """
SELECT heads.text_id, stack, layer, head, heads.{score}::DOUBLE AS score, text
FROM heads JOIN texts USING (text_id)
WHERE layer = ? AND head = ? AND stack = ? AND NOT isnan(heads.{score}::DOUBLE)
ORDER BY 5 DESC, 1 LIMIT ?
"""
_STACKS = "SELECT DISTINCT stack FROM heads WHERE layer = ? AND head = ? ORDER BY stack"
_NUMBERS = ("DOUBLE", "FLOAT", "INTEGER", "BIGINT")


class ExampleTexts(Table):
    """The result of `Survey.examples`: a `Table` that can be written as a page of its texts."""

    def to_html(  # type: ignore[override]
        self,
        path: str | PathLike[str] | None = None,
        *,
        model: Model = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        keep: Keep | None = None,
    ) -> str | None:
        """Write a page on which each of the texts can be chosen, with the head's graph.

        Parameters
        ----------
        path : path, optional
            The file to write.
        model : str, Path or PreTrainedModel, optional
            The model of the survey, to be run on these texts again, so that the page shows what it
            predicted: a survey holds no logits.
        tokenizer : PreTrainedTokenizerBase, optional
            Its tokenizer; by default found by the model's name.
        keep : Keep, optional
            Which of the edges to keep; by default all that the survey kept.

        Returns
        -------
        str or None
            The text of the page, if no path is given.

        Raises
        ------
        SelectionError
            If there are no texts, or `model` is not that of the survey, ran with other edits, or
            does not say which tokens it predicts.
        FileError
            If the survey is no longer there, or the page is too large.
        """
        if model is not None:
            model, tokenizer = resolved(model, tokenizer)
        name, graphs = worded(self.attrs["name"]), {}
        for row in self.to_dict("records"):
            place = {which: row[which] for which in ("stack", "layer", "head")}
            tables = rows_of(Path(self.attrs["folder"]), row["text_id"], place)
            found = trace_of(tables, self.attrs["model"])
            title = f"{name} {row['score']:.3g}, text {row['text_id']}"
            graphs[title] = found if model is None else predicted(found, model, tokenizer)
        return door.to_html(graphs, path, keep=keep)


def examples(survey: Survey, score: str, head: Any, most: int) -> ExampleTexts:
    """Find the texts in which a head has the most of a score; see `Survey.examples`."""
    stack, layer, number = _place(head)
    most = whole("most", most, 1, SelectionError)
    files = files_of(survey.folder, ["heads", "texts"])
    _check_score(survey.folder, files, score)
    stacks = ask(survey.folder, files, _STACKS, [layer, number])["stack"].tolist()
    if stack is None and len(stacks) == 1:
        stack = stacks[0]
    if stack not in stacks:
        raise SelectionError(_which(stack, layer, number, stacks))
    query = _BEST.format(score=quoted(score))
    found = ask(survey.folder, files, query, [layer, number, stack, most])
    return ExampleTexts.of(
        found,
        name=score,
        computed_from=f"head {layer}.{number} in {len(survey):,} texts, {survey.manifest['model']}",
        notes=definition_notes(score, definitions_of(survey.manifest)),
        edits=survey._edits,
        folder=str(survey.folder),
        model=survey.manifest["model"],
    )


def _place(head: Any) -> tuple[str | None, int, int]:
    """Read one head: as text, or as (layer, head)."""
    try:
        stack, places = list_places(head if isinstance(head, str) else [head])
    except ValueError as error:
        raise SelectionError(
            f"head must be one head: expected {error}; got {head!r:.80}."
        ) from error
    if len(places) != 1:
        raise SelectionError(f"head must be one head, such as '5.1' or (5, 1), not {head!r:.80}.")
    return stack, *places[0]


def _check_score(folder: Path, files: Any, score: str) -> None:
    """Refuse what is not a column of numbers."""
    columns = ask(folder, files, "DESCRIBE heads")
    kinds = dict(zip(columns["column_name"], columns["column_type"], strict=True))
    scores = [name for name, kind in kinds.items() if kind == "DOUBLE"]
    if kinds.get(score) not in _NUMBERS:
        raise SelectionError(
            f"No score {score!r:.200} in {folder}; its heads have {', '.join(scores)}."
        )


def _which(stack: str | None, layer: int, head: int, stacks: list[str]) -> str:
    name = f"{layer}.{head}"
    if not stacks:
        return f"No text has a head {name}: `survey.heads` lists the layers and heads."
    if stack is None:
        return (
            f"Head {name} is in the stacks {', '.join(stacks)}: name one, as in "
            f"'{stacks[0]}:{name}'."
        )
    return f"No text has a head {name} in a stack {stack!r:.80}; it is in {', '.join(stacks)}."
