"""Checks that two surveys can be compared: the same texts, the same definition of a score."""

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
"""Inputs that were token ids have no text, so their tokens are compared."""


def check_same_texts(one: Survey, other: Survey) -> None:
    """Check that texts with the same number are the same in both."""
    both = _digests(one).to_frame("one").join(_digests(other).rename("other"), how="inner")
    differing = both.index[both["one"].ne(both["other"])]
    if len(differing):
        raise SelectionError(
            f"{one.folder} and {other.folder} are of different texts: {len(differing):,} of "
            f"{len(both):,} that have the same text_id differ, the first is {differing[0]}. "
            "Compare surveys of the same input. If texts with the same text_id belong together "
            "nevertheless, such as two wordings of one sentence, use gattn.surveys.compare_heads."
        )


def check_same_scores(one: Survey, other: Survey, score: str) -> None:
    """Check that a score has the same definition in both."""
    versions = {definitions_of(survey.manifest): survey for survey in (one, other)}
    if is_redefined(score, min(versions), max(versions)):
        older = versions[min(versions)]
        raise SelectionError(
            f"{score!r} in {older.folder} has an older definition than in the other survey: run "
            "that survey again with this gattn, or compare another score."
        )


def _digests(survey: Survey) -> pd.Series[str]:
    digests = survey.sql(_TEXTS).set_index("text_id")["digest"]
    if digests.isna().any():
        digests.update(survey.sql(_WITHOUT_TEXT).set_index("text_id")["digest"])
    return digests.sort_index()
