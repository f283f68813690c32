"""Holds the folder of a survey while a run writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gattn.errors import FileError
from gattn.files.paths import UNNAMED
from gattn.surveys.store import queue
from gattn.surveys.store.manifest import MANIFEST
from gattn.surveys.store.parts import count_texts, is_part

_LOCK = ".lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be, against other runs.

    Raises
    ------
    FileError
        Where another run holds it, it is no survey, or it cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_own(folder)
        lock = FileLock(folder / _LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise FileError(
            f"{folder} is being written by another process: wait for it, or name another folder."
        ) from error
    except (OSError, NotImplementedError) as error:
        raise FileError(
            f"{folder} cannot be written: {error}. Name a folder that can be."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of whatever cannot be written that it does no harm to what is."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error}. The {count_texts(folder):,} texts that are in "
            "it are whole; make room, and run the same again to go on."
        ) from error


def _check_own(folder: Path) -> None:
    """Refuse a folder that holds anything but a survey, or what a run left that filled a queue."""
    if (folder / MANIFEST).is_file():
        return
    for path in folder.iterdir():
        is_own = path.name == _LOCK or path.name.startswith((UNNAMED, f"{queue.FOLDER}."))
        if path.name == queue.FOLDER and (folder / _LOCK).is_file():
            is_own = all(is_part(inner) for inner in path.iterdir())
        if not is_own:
            raise FileError(
                f"{folder} is neither empty nor a survey: it holds {path.name!r}. Name another "
                "folder."
            )
