"""Refuses to pair two surveys of different texts, which number them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gattn.analysis.heads.even_attention import EVEN_COLUMNS
from gattn.analysis.heads.head_scores import REDEFINED
from gattn.errors import SelectionError

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
    older, newer = sorted((one, other), key=_definitions)
    changed = (
        names
        for version, names in REDEFINED.items()
        if _definitions(older) < version <= _definitions(newer)
    )
    if any(EVEN_COLUMNS.get(score, score) in names for names in changed):
        raise SelectionError(
            f"{score!r} in {older.folder} has an older definition than in the other survey: run "
            "that survey again with this gattn, or compare other scores."
        )


def _definitions(survey: Survey) -> int:
    """Give the version of its scores' definitions; the first ones did not say."""
    version = survey.manifest.get("definitions")
    return version if isinstance(version, int) else 1


def _digests(survey: Survey) -> pd.Series[str]:
    digests = survey.sql(_TEXTS).set_index("text_id")["digest"]
    if digests.isna().any():
        digests.update(survey.sql(_WITHOUT_TEXT).set_index("text_id")["digest"])
    return digests.sort_index()
