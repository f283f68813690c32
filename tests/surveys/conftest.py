from pathlib import Path

import pytest
from runs import TEXTS, run

import gattn
from gattn.surveys.store import queue


@pytest.fixture(scope="session")
def embedded():
    """The embedded model, loaded once."""
    return gattn.load_model()[0]


@pytest.fixture
def small_parts(monkeypatch):
    """Cut the queues of surveys into parts of four texts."""
    monkeypatch.setattr(queue, "MOST_TEXTS", 4)


def _contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="session")
def contents():
    """Read all files of a folder, but the lock."""
    return _contents


@pytest.fixture
def whole(tmp_path, embedded, small_parts):
    """What an undisturbed survey of the texts writes, to the folder ``whole``."""
    run(TEXTS, embedded, tmp_path / "whole")
    return _contents(tmp_path / "whole")
