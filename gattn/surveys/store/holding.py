"""Locks the folder of a survey while a run writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gattn.errors import FileError
from gattn.files.whole_files import UNNAMED
from gattn.surveys.store import queue
from gattn.surveys.store.manifest import MANIFEST
from gattn.surveys.store.parts import count_texts, is_part

_LOCK = ".lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs; create it if needed, and refuse one with other files."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_own(folder)
        lock = FileLock(folder / _LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise FileError(
            f"{folder} is in use by another run: wait for it, or choose another folder."
        ) from error
    except (OSError, NotImplementedError) as error:
        raise FileError(f"{folder} is not writable: {error}. Choose another folder.") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Report errors of writing, and that texts in the survey are safe."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error}. The {count_texts(folder):,} texts in it are "
            "complete; make room, then run the same survey again to resume."
        ) from error


def _check_own(folder: Path) -> None:
    """Refuse a folder that holds anything but a survey or an unfinished queue."""
    if (folder / MANIFEST).is_file():
        return
    for path in folder.iterdir():
        is_own = path.name == _LOCK or path.name.startswith((UNNAMED, f"{queue.FOLDER}."))
        if path.name == queue.FOLDER and (folder / _LOCK).is_file():
            is_own = all(is_part(inner) for inner in path.iterdir())
        if not is_own:
            raise FileError(
                f"{folder} is neither empty nor a survey: it holds {path.name!r}. Choose another "
                "folder."
            )
