"""Streams that are closed, full or lack characters; runs that are stopped or out of memory."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from gattn import capture
from gattn.cli import command, main
from gattn.cli.commands import listing

TEXT = "The river tall green lamp river tall green"


def in_a_shell(command_line, **environment):
    """Run gattn where the line says so; give the exit status, output and errors."""
    line = command_line.replace("gattn", f"{sys.executable} -m gattn")
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | environment, capture_output=True, timeout=600
    )
    return done.returncode, done.stdout, done.stderr


def printed(arguments, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    with redirect_stdout(stream):
        status = main(arguments)
    stream.flush()
    assert stream.errors == "strict"  # as it was
    return status, stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_arrows_are_readable_on_any_console(encoding):
    status, text = printed(["routes", TEXT], encoding)
    assert status == 0
    assert "?" not in text
    arrow = "→" if encoding == "utf-8" else "->"
    assert f"7 tall {arrow} 8 green" in text


@pytest.mark.slow
def test_characters_without_a_likeness_are_escaped():
    assert printed(["tokens", "犬"], "utf-8")[0] == 0
    text = printed(["tokens", "é"], "ascii")[1]
    assert all(ord(character) < 128 for character in text)
    assert "?" not in text


@pytest.mark.skipif(sys.platform == "win32", reason="names of files are Unicode there")
def test_files_whose_names_are_not_unicode_are_written(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg")
    status, text = printed(["draw", TEXT, "-o", path], "utf-8")
    assert status == 0
    assert "\\xff.svg" in text
    assert Path(path).read_bytes().startswith(b"<?xml")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a shell's redirections")
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("gattn models >&-", 0, b""),
        ("gattn models 2>&-", 0, b""),
        ("gattn tokens 2>&- >&-", 2, b""),
        ("gattn tokens - <&-", 2, b"Standard input is closed"),
        ("gattn models > /dev/full", 1, b"No space left on device"),
        ("gattn --help | true", 0, b""),
    ],
)
def test_closed_and_full_streams(line, status, said):
    found, _, errors = in_a_shell(line)
    assert found == status
    assert said in errors
    assert b"Traceback" not in errors
    assert b"Exception ignored" not in errors
    assert errors.count(b"\n") == bool(said)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a shell's redirections")
def test_a_console_of_ascii():
    line = f"gattn routes '{TEXT}'"
    status, output, errors = in_a_shell(line, PYTHONIOENCODING="ascii")
    assert (status, errors) == (0, b"")
    assert b"7 tall -> 8 green" in output


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (MemoryError(), 1, "Out of memory: ask for less"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "Out of memory"),
        (ZeroDivisionError("by\nzero"), 1, "A bug in gattn: ZeroDivisionError in "),
        (OSError(28, "No space left on device", "a.svg"), 1, "a.svg: No space left on device"),
        (RecursionError("too deep"), 1, "A bug in gattn: RecursionError"),
    ],
)
def test_whatever_happens_ends_in_one_line(error, status, said, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(listing, "load", fail)
    monkeypatch.setattr(command, "drop_output", lambda: None)
    assert main(["tokens", "a"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_devices_and_pipes_are_not_replaced(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out.svg").symlink_to("pipe")
    assert main(["draw", TEXT, "-o", str(tmp_path / "out.svg")]) == 2
    assert "is a device or a pipe" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


def test_no_more_is_generated_than_a_model_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["view", TEXT, "--no-open", "--generate", "999999999999"]) == 2
    room = 1024 - len(capture(TEXT).tokens)
    assert f"the text: generate at most {room}." in capsys.readouterr().err
