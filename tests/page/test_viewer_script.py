"""The page's script: its own unit tests, run by the node that playwright brings along."""

import re
import subprocess
from os.path import normpath
from pathlib import Path, PurePosixPath

import pytest

from gattn.drawing.page.script import MODULES, viewer_script

PAGE = Path(__file__).parents[2] / "gattn" / "drawing" / "page"
HERE = Path(__file__).parent


_IMPORT = re.compile(r"^import \{ (.+) \} from \"(.+)\";$", re.MULTILINE)
_DEFINED = re.compile(r"^(export )?(?:async )?(?:function|const|class) ([\w$]+)", re.MULTILINE)
_UNSAID = re.compile(r"//.*|(?s:/\*.*?\*/)|\"[^\"\n]*\"")

_BARE = r"(?<![\w$])(?<!(?<!\.\.)\.)"  # not of an object, but for "..."


def source(module):
    return (PAGE / "viewer" / module).read_text(encoding="utf-8")


def imports(module):
    """Give the names that a module imports, by the module that each is from."""
    at = PurePosixPath(module).parent
    found = _IMPORT.findall(source(module))
    return {normpath(at / where): names.split(", ") for names, where in found}


def defined(module):
    """Give all names of a module's own scope, and whether it exports each."""
    return {name: bool(exported) for exported, name in _DEFINED.findall(source(module))}


def test_the_script_is_all_modules_in_an_order():
    found = {path.relative_to(PAGE / "viewer").as_posix() for path in PAGE.rglob("*.js")}
    assert found == set(MODULES)
    assert len(MODULES) == len(found)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_modules_before_it_alone(module):
    """So there is no circle, and what a module needs is there when the joined script runs it."""
    before = MODULES[: MODULES.index(module)]
    for other, names in imports(module).items():
        assert other in before
        exported = [name for name, is_exported in defined(other).items() if is_exported]
        assert set(names) <= set(exported)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_what_it_uses_and_nothing_else(module):
    text = _UNSAID.sub("", _IMPORT.sub("", source(module)))
    imported = {name for names in imports(module).values() for name in names}
    for name in imported:
        assert re.search(rf"{_BARE}{re.escape(name)}(?![\w$])", text), name
    others = {name for other in MODULES for name in defined(other)} - set(defined(module))
    called = set(re.findall(rf"{_BARE}([\w$]+)\(", text))
    constants = set(re.findall(rf"{_BARE}([A-Z][A-Z_]+)\b", text))
    assert (called | constants) & others <= imported


def test_no_two_modules_define_the_same_name():
    names = [name for module in MODULES for name in defined(module)]
    assert sorted(names) == sorted(set(names))


def test_every_name_is_used_or_tested():
    text = _UNSAID.sub("", viewer_script())
    tests = "".join(path.read_text("utf-8") for path in HERE.glob("*.mjs"))
    for module in MODULES:
        for name, is_exported in defined(module).items():
            word = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
            assert len(word.findall(text)) > 1 or (is_exported and word.search(tests)), name


def test_every_module_says_first_what_it_holds():
    for module in MODULES:
        assert re.match(r"// [A-Z].*[.:]\n\n", source(module)), module


def test_joining_leaves_no_import_and_no_export():
    assert not re.findall(r"^(?:import|export)\b.*", viewer_script(), re.MULTILINE)
    names = [name for _, name in _DEFINED.findall(viewer_script())]
    assert names == [name for module in MODULES for name in defined(module)]


def node():
    driver = pytest.importorskip("playwright._impl._driver", reason="no playwright, so no node")
    return driver.compute_driver_executable()[0]


def test_the_unit_tests_of_the_script_pass():
    files = sorted(map(str, HERE.glob("*.test.mjs")))
    assert files
    found = subprocess.run([node(), "--test", *files], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


@pytest.mark.parametrize(
    "way",
    [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "srcdoc",
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "import(",
        "window.open",
        "sendBeacon",
        "location.assign",
        "location.replace",
        "http:",
        "https:",
        "</script",
        "<!--",
    ],
)
def test_the_script_has_no_way_to_insert_markup_or_reach_the_network(way):
    assert way not in viewer_script().replace("http://www.w3.org/2000/svg", "")


def test_the_script_never_leaves_the_page():
    """The policy would not hold it back: it forbids requests, not to go elsewhere."""
    leaves = re.compile(r"\blocation(\.\w+)?\s*=[^=]")
    assert leaves.search("window.location.href = there")
    assert leaves.search("location=there")
    assert not leaves.search(viewer_script())


def test_the_style_and_the_markup_load_and_run_nothing():
    style, markup = (
        (PAGE / "viewer" / name).read_text("utf-8") for name in ("viewer.css", "skeleton.html")
    )
    assert not re.findall(r"url\(|@import|http|</style", style)
    assert not re.findall(r"\s(?:on\w+|src|href|style|action)=(?!\"#)", markup)
    assert not re.findall(r"<(?:script|link|style|iframe|object|base)", markup)
