"""What the tests of surveys run."""

from contextlib import contextmanager

import pytest

from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.run.running import survey

TEXTS = [f"The dog number {n} chased the cat. " * (1 + n % 3) for n in range(10)]


def run(texts, model, out, **options):
    """Run a survey without analyses, which take most of the time."""
    return survey(texts, model, out=out, **{"analyses": [], "progress": False} | options)


def raiser(error):
    """Make a function that raises an error."""

    def fail(*_, **__):
        raise error

    return fail


@contextmanager
def stopped(error=KeyboardInterrupt):
    """Let surveys stop with an error at their third batch."""
    call, calls = CaptureGraphs.__call__, []

    def stopping(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise error
        return call(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CaptureGraphs, "__call__", stopping)
        yield
