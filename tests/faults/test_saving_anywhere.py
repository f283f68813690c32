"""Saving over whatever is there, and where it cannot be done."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

import pytest
from file_samples import same, sample_head, sample_trace

from gattn.errors import FileError
from gattn.files import load, paths, save, whole_files

SUFFIXES = [".gattn", ".json", ".graphml", ".gexf", ".dot", ".csv", ".html"]
posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")


def write(path):
    if path.suffix == ".html":
        sample_head().to_html(path)
    else:
        save(sample_head(), path)


@posix
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_file_keeps_its_mode(mode, suffix, tmp_path):
    path = tmp_path / f"head{suffix}"
    path.write_text("before")
    path.chmod(mode)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() != b"before"


@posix
def test_what_is_private_is_so_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "head.json"
    path.write_text("before")
    path.chmod(0o600)
    seen = []
    monkeypatch.setitem(
        paths._WRITERS, ".json", lambda _, part: seen.append(stat.S_IMODE(part.stat().st_mode))
    )
    save(sample_head(), path)
    assert seen == [0o600]


@posix
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path, monkeypatch):
    path = tmp_path / "head.json"
    path.write_text("before")
    os.chown(path, 1234, 4321)
    path.chmod(0o660)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # not what another group may read


@posix
def test_links_are_written_through_and_loops_refused(tmp_path):
    real, link, chain = tmp_path / "real.json", tmp_path / "a.json", tmp_path / "b.json"
    link.symlink_to("real.json")
    chain.symlink_to(link)
    write(chain)
    assert chain.is_symlink()
    assert link.is_symlink()
    assert same(sample_head(), load(chain))
    assert not real.is_symlink()
    for name, to in (("x.json", "y.json"), ("y.json", "x.json"), ("z.json", "z.json")):
        (tmp_path / name).symlink_to(to)
    for name in ("x.json", "z.json"):
        with pytest.raises(FileError, match=r"[xz]\.json cannot be written: .*"):
            write(tmp_path / name)
        with pytest.raises(FileError, match=r"[xz]\.json"):
            load(tmp_path / name)
        assert (tmp_path / name).is_symlink()


def test_names_that_no_file_can_have_are_refused(tmp_path):
    names = {
        "a\0b": ("it contains a NUL", "it contains a NUL"),
        "a" * 300: ("cannot be written: File name too long", "cannot be read: File name too long"),
        "/".join(["a" * 200] * 40): ("cannot be written: File name", "cannot be read: File name"),
        "\ud800": ("surrogates not allowed", "there is none in"),
    }
    for (name, (written, read)), suffix in product(names.items(), (".gattn", ".json", ".html")):
        with pytest.raises(FileError) as found:
            write(tmp_path / f"{name}{suffix}")
        assert written in str(found.value)
        assert "\0" not in str(found.value)
        if suffix != ".html":
            with pytest.raises(FileError, match=read):
                load(tmp_path / f"{name}{suffix}")
    assert list(tmp_path.iterdir()) == []


@posix
def test_devices_pipes_and_folders_are_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "null.json").symlink_to("/dev/null")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe.json", "null.json", "folder.json"):
        with pytest.raises(FileError, match=r"is a (device or a pipe|folder)"):
            write(tmp_path / name)
        with pytest.raises(FileError, match=r"it is a (device or a pipe|folder)"):
            load(tmp_path / name)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISFIFO((tmp_path / "pipe.json").stat().st_mode)


def run(code, folder, **options):
    """Run a script as a user that may not write everywhere; give what it says."""
    setup = "import sys\nfrom gattn.errors import FileError\nfrom file_samples import *\n"
    return subprocess.run(
        [sys.executable, "-c", setup + textwrap.dedent(code), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        **options,
    )


@posix
def test_a_folder_that_allows_no_new_files_is_an_error_that_says_so(tmp_path, monkeypatch):
    path = tmp_path / "head.json"
    path.write_text("before")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(FileError, match=r"Permission denied\. To replace a file safely"):
            write(path)
    assert path.read_text() == "before"


@pytest.mark.slow
@posix
def test_a_file_that_may_not_grow_is_an_error_and_leaves_what_was_there(tmp_path):
    files = [tmp_path / f"head{suffix}" for suffix in SUFFIXES]
    for path in files:
        path.write_text("before")
    code = """
    import os, pathlib, resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    head, page = sample_head(), sample_head().to_html()
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
    for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        try:
            head.to_html(path) if path.suffix == ".html" else head.save(path)
        except FileError as error:
            os.write(1, f"{error}\\n".encode())
    """
    said = run(code, tmp_path)
    lines = said.stdout.splitlines()
    assert len(lines) == len(files), said.stderr
    for path, line in zip(sorted(files), lines, strict=True):
        assert line.startswith(f"{path} cannot be written: ")
        assert line.endswith("Make room, or save elsewhere.")
        assert path.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in files)


@posix
@pytest.mark.slow
def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path):
    code = """
    import os, signal
    from gattn.files import paths
    def die(thing, part):
        part.write_text("The dog")
        os.kill(os.getpid(), signal.SIGKILL)
    paths._WRITERS[".json"] = die
    sample_head().save(sys.argv[1])
    """
    assert run(code, tmp_path / "head.json").returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".gattn-")
    others = [
        f".gattn-{whole_files._here()}-{os.getpid()}-a.part",
        ".gattn-00000000-1-a.part",
        ".gattn-x",
    ]
    for name in others:  # of a running process, of another machine, and of somebody else
        (tmp_path / name).touch()
    (tmp_path / ".gattn-0123456789abcdef.part").touch()
    os.utime(tmp_path / ".gattn-0123456789abcdef.part", (0, 0))
    write(tmp_path / "other.json")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "other.json"])


def test_saving_twice_at_once_leaves_one_whole_file(tmp_path):
    path = tmp_path / "trace.gattn"
    with paths.whole_file(path) as first:
        sample_trace().save(path)
        assert first.exists()
        first.write_text("The last one wins.")
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_text() == "The last one wins."
