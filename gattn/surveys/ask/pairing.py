"""Refuses to pair two surveys of different texts, which number them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gattn.errors import SelectionError
from gattn.surveys.ask.definitions import definitions_of, is_redefined

if TYPE_CHECKING:
    import pandas as pd

    from gattn.surveys.ask.reading import Survey

_TEXTS = "SELECT text_id, md5(text) AS digest FROM texts"
_WITHOUT_TEXT = """
SELECT text_id, md5(list(
    {'stack': stack, 'role': role, 'position': position, 'token': token}
    ORDER BY stack, role, position
)::VARCHAR) AS digest
FROM tokens SEMI JOIN (SELECT text_id FROM texts WHERE text IS NULL) USING (text_id)
GROUP BY text_id
"""
"""Rows that were token ids have no text: their tokens say what they are."""


def check_same_texts(one: Survey, other: Survey) -> None:
    """Compare the texts that have the same number in both.

    Raises
    ------
    SelectionError
        Where they differ.
    """
    both = _digests(one).to_frame("one").join(_digests(other).rename("other"), how="inner")
    differing = both.index[both["one"].ne(both["other"])]
    if len(differing):
        raise SelectionError(
            f"{one.folder} and {other.folder} are of different texts: {len(differing):,} of "
            f"{len(both):,} that have the same text_id differ, the first is {differing[0]}. "
            "Compare surveys of the same input; where texts belong together by their text_id all "
            "the same, such as two wordings of one sentence, use gattn.surveys.compare_heads."
        )


def check_same_scores(one: Survey, other: Survey, score: str) -> None:
    """Compare what a score means in both.

    Raises
    ------
    SelectionError
        Where its definition changed in between.
    """
    versions = {definitions_of(survey.manifest): survey for survey in (one, other)}
    if is_redefined(score, min(versions), max(versions)):
        older = versions[min(versions)]
        raise SelectionError(
            f"{score!r} in {older.folder} has an older definition than in the other survey: run "
            "that survey again with this gattn, or compare other scores."
        )


def _digests(survey: Survey) -> pd.Series[str]:
    digests = survey.sql(_TEXTS).set_index("text_id")["digest"]
    if digests.isna().any():
        digests.update(survey.sql(_WITHOUT_TEXT).set_index("text_id")["digest"])
    return digests.sort_index()
