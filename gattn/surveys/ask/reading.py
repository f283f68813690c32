"""Opens surveys: their traces, tables and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from gattn.checks import check_options
from gattn.edit_records import in_words
from gattn.errors import SelectionError
from gattn.files.whole_files import as_path
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.surveys.ask.finding import all_rows, rows_of
from gattn.surveys.ask.sql import quoted
from gattn.surveys.ask.statistics import PLACE, HeadStatistics, head_statistics
from gattn.surveys.ask.tables import Tables, in_column, stack_name, whole_number
from gattn.surveys.store.manifest import manifest_of
from gattn.surveys.store.rebuilding import trace_of

if TYPE_CHECKING:
    import pandas as pd

    from gattn.surveys.ask.comparison import HeadComparison
    from gattn.surveys.ask.examples import ExampleTexts


def open_survey(folder: str | PathLike[str]) -> Survey:
    """Open a survey to read, even while it is being written.

    Parameters
    ----------
    folder : path
        The folder that `gattn.survey` wrote.

    Returns
    -------
    Survey
        Its traces and tables.

    Raises
    ------
    FileError
        If there is no survey, its manifest is damaged, or a newer gattn wrote it.

    Examples
    --------
    >>> survey = gattn.open_survey("survey")
    >>> survey.heads.groupby(["layer", "head"])["induction"].mean()
    >>> survey.trace(text_id=17)[1, 3].draw()
    """
    folder = as_path(folder, "survey")
    return Survey(folder, manifest_of(folder))


@dataclass(frozen=True, repr=False)
class Survey(Tables):
    """A survey on disk: the traces of many texts, and tables of them.

    It holds nothing in memory: every call reads the parts that are finished by then, never half of
    one.

    Parameters
    ----------
    folder : Path
        The survey's folder.
    manifest : mapping
        The settings and the model that it was run with.
    """

    def __len__(self) -> int:
        """Count the texts that were captured."""
        return self._count("texts")

    @property
    def is_complete(self) -> bool:
        """Whether every chosen text was captured or has failed."""
        return len(self) + self._count("failures") == int(self.manifest["num_texts"])

    def __repr__(self) -> str:
        texts, failures = len(self), self._count("failures")
        left = int(self.manifest["num_texts"]) - texts - failures
        failed = f", {failures:,} failed" if failures else ""
        todo = f", {left:,} to do" if left else ""
        edits = "".join(f"; {said}" for said in [in_words(self._edits)] if said)
        return (
            f"Survey({self.manifest['model']}: {texts:,} texts{failed}{todo}; "
            f"keep={self.manifest['keep']}{edits}; {self.folder})"
        )

    # Traces

    def trace(self, text_id: int) -> AttentionTrace:
        """Read the trace of one text, as it was captured.

        Parameters
        ----------
        text_id : int
            The text's number among all texts of the input, counted from 0.

        Raises
        ------
        SelectionError
            If it is not there; the message says whether it failed, is to do or was not chosen.
        FileError
            If a file is damaged.
        """
        number = whole_number("text_id", text_id)
        return trace_of(rows_of(self.folder, number), self.manifest["model"])

    def graph(
        self, text_id: int, layer: int, head: int, *, stack: str | None = None
    ) -> AttentionGraph:
        """Read the graph of one head of one text, without the others.

        Parameters
        ----------
        text_id, layer, head : int
            Which text, layer and head.
        stack : str, optional
            The stack, if there are several.

        Raises
        ------
        SelectionError, FileError
            As `trace` does.
        """
        text_id = whole_number("text_id", text_id)
        chosen = {"layer": layer, "head": head}
        place: dict[str, Any] = {name: in_column(name, one) for name, one in chosen.items()}
        if stack is not None:
            place["stack"] = stack_name(stack)
        tables = rows_of(self.folder, text_id, place)
        if not len(tables["heads"]):
            raise SelectionError(
                f"Text {text_id} has no head at {place}: `survey.trace({text_id})` lists its "
                "stacks, layers and heads."
            )
        found = trace_of(tables, self.manifest["model"])
        return (found if stack is None else found[stack])[layer, head]

    def traces(self) -> Iterator[tuple[int, AttentionTrace]]:
        """Iterate over all texts in order: the ``text_id`` and the trace of each.

        One part, of at most 64 texts, is in memory at a time.
        """
        for text_id, tables in all_rows(self.folder):
            yield text_id, trace_of(tables, self.manifest["model"])

    # Statistics

    def statistics(self, score: str, **options: Any) -> HeadStatistics:
        """Take the mean of a score over all texts; see `gattn.surveys.head_statistics`."""
        check_options(head_statistics, options, "statistics()")
        return head_statistics(self._scores(score), score, **options)

    def examples(self, score: str, head: str | tuple[int, int], *, most: int = 10) -> ExampleTexts:
        """Find the texts in which a head has the most of a score.

        Parameters
        ----------
        score : str
            A column of numbers of the table ``heads``, such as ``induction``.
        head : str or (int, int)
            The head: its layer and number, or text such as ``"5.1"`` or ``"decoder:5.1"``.
        most : int
            How many texts.

        Returns
        -------
        ExampleTexts
            One row per text, the largest score first, then by ``text_id``: ``text_id``, ``stack``,
            ``layer``, ``head``, ``score`` and ``text``. Texts without the score are left out.
            ``to_html(path)`` writes a page of them.

        Raises
        ------
        SelectionError
            If there is no such score or head, or it is in several stacks.

        Examples
        --------
        >>> survey.examples("induction", "5.1").to_html("induction.html")
        """
        from gattn.surveys.ask.examples import examples

        return examples(self, score, head, most)

    def compare(self, other: Survey, score: str, **options: Any) -> HeadComparison:
        """Compare with a survey of the same texts; see `gattn.surveys.compare_heads`.

        Raises
        ------
        SelectionError
            If `other` is not a survey, texts with the same number differ, or the two surveys define
            the score differently.
        OptionError
            If there is no such option.
        """
        from gattn.surveys.ask.comparison import compare_heads
        from gattn.surveys.ask.pairing import check_same_scores, check_same_texts

        if not isinstance(other, Survey):
            raise SelectionError(
                f"other must be a Survey, as gattn.open_survey(folder) opens it, not {other!r:.80}."
            )
        check_options(compare_heads, options, "compare()")
        check_same_scores(self, other, score)
        check_same_texts(self, other)
        return compare_heads(self._scores(score), other._scores(score), score, **options)

    def _scores(self, score: str) -> pd.DataFrame:
        """Load one score of all heads."""
        known = self._ask(["heads"], "SELECT * FROM heads LIMIT 0").columns
        if score not in known:
            raise SelectionError(
                f"No score {score!r:.200} in {self.folder}; its heads have {', '.join(known)}."
            )
        columns = ", ".join(map(quoted, ["text_id", *PLACE, score]))
        return self._told(self._ask(["heads"], f"SELECT {columns} FROM heads"))
