"""Tells which scores were defined differently by earlier versions of gattn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gattn.analysis.heads.summed.even_attention import EVEN_COLUMNS
from gattn.analysis.heads.summed.head_scores import DEFINITIONS, REDEFINED


def definitions_of(manifest: Mapping[str, Any]) -> int:
    """Return the version of a survey's score definitions; the first was not written down."""
    version = manifest.get("definitions")
    return version if isinstance(version, int) else 1


def is_redefined(score: str, since: int, until: int = DEFINITIONS) -> bool:
    """Return whether the definition of a score changed after one version, up to another."""
    changed = (names for version, names in REDEFINED.items() if since < version <= until)
    return any(EVEN_COLUMNS.get(score, score) in names for names in changed)


def definition_notes(score: str, *versions: int | None) -> list[str]:
    """Note that a score has an older definition, or several; None is an unknown version."""
    known = [version for version in versions if version is not None]
    if not known or not is_redefined(score, min(known)):
        return []
    if len(versions) > 1 and is_redefined(score, min(known), max(known)):
        return [f"{score} is defined differently before and after: run the older survey again"]
    return [f"{score} has the definition of an older gattn: run the survey again for the new one"]
