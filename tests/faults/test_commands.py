"""Command lines at random: each ends in exit status 0, 1 or 2, and says what is wrong."""

import contextlib
import io
import os
import random
import signal
import threading
import warnings

import pytest
from command_lines import command_line, lay_out

from gattn.cli import main

MOST_SECONDS = 120
LONGEST_LINE = 1000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what command lines name, a survey among it."""
    folder = tmp_path_factory.mktemp("commands")
    before = os.getcwd()
    lay_out(folder)
    os.chdir(folder)
    yield folder
    os.chdir(before)


def ended(line, encoding="utf-8"):
    """Run a command; give its exit status, output and errors."""
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    errors = io.TextIOWrapper(io.BytesIO(), encoding)
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
        within(MOST_SECONDS),
    ):
        warnings.simplefilter("ignore")  # Those of other libraries, for odd numbers and fonts.
        status = main(line)
    texts = []
    for stream in (output, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))
    return status, *texts


@contextlib.contextmanager
def within(seconds):
    """Stop what takes longer, where signals can."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        # Nothing that the command catches.
        raise GeneratorExit(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(line, encoding="utf-8"):
    status, output, errors = ended(line, encoding)
    assert status in (0, 1, 2), (line, errors)
    assert "Traceback" not in output + errors, line
    assert "A bug in gattn" not in errors, (line, errors)
    if status:
        (said,) = errors.splitlines()
        assert said.startswith("gattn: "), line
        assert 20 < len(said) < LONGEST_LINE, (line, said)
        assert said.isprintable(), (line, said)
    else:
        assert not errors, line
    return status


QUICK = [
    *(
        [],
        ["--help"],
        ["--version"],
        ["nosuch"],
        [""],
        ["\udcff"],
        ["\x00"],
        ["--"],
        ["draw", "-o"],
    ),
    ["draw", "a", "b"],
    ["tokens", "-text"],
    ["tokens", "a", "-o", "out.csv"],
    ["effect", "a", "--target", "-x"],
    ["draw", "a", "--layer", "9" * 5000],
    ["draw", "a", "--layer=-"],
    ["draw", "a", "--layer", "²"],
    ["draw", "a", "--layer", "1.5"],
    ["draw", "a", "--heads", f"{'9' * 5000}.1"],
    ["draw", "a", "--heads", ",".join(["1"] * 5000)],
    ["draw", "a", "--sort", "\udcff"],
    ["routes", "a", "--threshold", "nan"],
    ["routes", "a", "--position", "1e3"],
    ["flow", "a", "--residual", "inf"],
    ["flow", "a", "--query=--"],
    ["flow", "a", "--query", "\udcff"],
    ["heads", "a", "--keep", f"topk:{'9' * 5000}"],
    ["heads", "a", "--keep", "topmass:nan"],
    ["effect", "a", "--cut", "0-99999999999"],
    ["effect", "a", "--cut", "*:0-99999999999<-*"],
    ["effect", "a", "--cut", "9" * 5000],
    ["effect", "a", "--cut", f"0-{'9' * 5000}"],
    ["effect", "a", "--cut", "\udcff:1"],
    ["effect", "a", "--scale", "x:1"],
    ["effect", "a", "--scale", "1:0-99999999999"],
    ["effect", "a", "--swap", "dot:1"],
    ["compare", "a", "--swap", "cosine@0-99999999999"],
    ["view", "a", "--generate", "9" * 5000],
    ["survey", "texts.txt", "-o", "made", "--layers", "0-99999999999"],
    ["survey", "texts.txt", "-o", "\udcff"],
    ["survey", "texts.txt", "-o", "nul\0"],
    ["survey", "texts.txt", "-o", "made", "--seed=-1"],
    ["survey", "texts.txt", "-o", "made", "--num-gpus", "nan"],
    ["query", "\udcff", "select 1"],
    *(["draw", "a", "-o", path] for path in ("", ".", "pipe.svg", "loop.svg", "directory.svg")),
    *(["draw", "a", "-o", path] for path in ("nul\0.svg", f"{'x' * 300}.svg", "missing/a.svg")),
    *(["draw", "a", "-o", path] for path in ("texts.txt/a.svg", "out.xlsx", "\udcff")),
]


@pytest.mark.parametrize(
    "line", QUICK, ids=lambda line: " ".join(line)[:40].encode("ascii", "replace").decode()
)
def test_what_cannot_be_is_refused_before_anything_loads(place, line):
    before = sorted(place.iterdir())
    status = check(line)
    assert status == (0 if line[:1] in (["--help"], ["--version"]) else 2)
    assert sorted(place.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_random_command_lines(place, first):
    if not (place / "survey").exists():
        assert ended(["survey", "texts.txt", "-o", "survey"])[0] == 0
    statuses = [
        check(
            command_line(random.Random(seed)),
            random.Random(seed).choice(["utf-8", "cp1252", "ascii"]),
        )
        for seed in range(first, first + 50)
    ]
    assert 5 < statuses.count(0) < 40  # Good ones are among them.
