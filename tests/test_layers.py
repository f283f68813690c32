"""Who may import whom, and what importing gattn costs."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import gattn

ROOT = Path(gattn.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
LAYERS = [
    {"door", "on_page", "errors", "caching", "progress", "checks", "edit_records"},
    {"names", "largest"},
    {"graph"},
    {"weights", "normalizers", "keep"},
    {"engines"},
    {"heads"},
    {"attention", "teaching"},
    {"module"},
    {"files"},
    {"models"},
    {"analysis"},
    {"surveys"},
    {"drawing"},
    {"cli", "testing"},
    {"__main__"},
]
COMMAND = [
    {"terminal.consoles", "terminal.collecting", "terminal.output"}
    | {"arguments.values", "arguments.edits"},
    {"arguments.captures"},
    {"commands.effects"},
    {
        f"commands.{name}"
        for name in ("drawing", "explaining", "measuring", "listing", "querying", "surveying")
    },
    {"shared_arguments"},
    {"measuring_arguments", "survey_arguments"},
    {"parser"},
    {"command"},
    {"__init__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
_LIGHT = {"__version__", "errors", "cli"}
LATE = {"torch", "torch_geometric", "transformers", "matplotlib", "numpy"}


def place(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path, *, within_functions: bool = False) -> set[str]:
    """The modules that a file imports: as it is loaded, or also when a function is called."""
    found, waiting = set(), list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif within_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


def module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_import_only_from_their_left() -> None:
    for path in FILES:
        assert place(path) in RANK, f"Say in LAYERS where {place(path)} belongs."
        for name in imports(path, within_functions=True):
            if name.startswith("gattn.") and (target := name.split(".")[1]) in RANK:
                file = path.relative_to(ROOT)
                assert RANK[target] <= RANK[place(path)], f"{file} imports {name}"


def test_only_doors_import_by_name() -> None:
    """Such imports are seen by no test of layers."""
    users = {
        path.relative_to(ROOT).as_posix() for path in FILES if "import_module" in path.read_text()
    }
    assert users == {"door.py", "drawing/pictures.py", "engines/choice.py"}


def circles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(some) for some in nx.strongly_connected_components(graph) if len(some) > 1]


def test_no_imports_run_in_a_circle_of_files_or_of_folders() -> None:
    files = {module(path): path for path in FILES}
    graph, folders = nx.DiGraph(), nx.DiGraph()
    for name, path in files.items():
        for found in imports(path, within_functions=True):
            target = found if found in files else found.rpartition(".")[0]
            if target in files:
                graph.add_edge(name, target)
                folders.add_edge(path.parent, files[target].parent)
    folders.remove_node(ROOT)
    assert circles(graph) == []
    assert circles(folders) == []


def test_files_of_the_command_import_only_from_their_left() -> None:
    rank = {name: rank for rank, names in enumerate(COMMAND) for name in names}
    files = {
        module(path).removeprefix("gattn.cli."): imports(path)
        for path in FILES
        if place(path) == "cli" and (path.stem != "__init__" or path.parent.name == "cli")
    }
    files["__init__"] = files.pop("gattn.cli")
    assert files.keys() == rank.keys()
    for file, found in files.items():
        for name in found:
            package, _, rest = name.removeprefix("gattn.").partition(".")
            if name.startswith("gattn."):
                is_light = package in _LIGHT or name.startswith("gattn.names.places.")
                assert is_light, f"{file}: {name}"
            targets = [target for target in rank if f"{rest}.".startswith(f"{target}.")]
            if package == "cli" and targets:
                assert rank[targets[0]] < rank[file], f"{file} imports {name}"


def test_only_the_layer_and_its_engine_import_torch_geometric() -> None:
    users = {
        path
        for path in FILES
        if any(name.split(".")[0] == "torch_geometric" for name in imports(path))
    }
    assert users
    assert {place(path) for path in users} <= {"module", "engines"}
    assert {path.name for path in users if place(path) == "engines"} == {"message_passing.py"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import gattn", LATE),
        ("import gattn; dir(gattn)", LATE),
        ("import gattn.cli", LATE | {"pandas"}),
        ("import gattn.files", {"matplotlib", "torch_geometric", "transformers"}),
    ],
)
def test_importing_is_cheap(statement: str, absent: set[str]) -> None:
    code = f"{statement}; import sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=True
    )
    assert absent & set(run.stdout.split()) == set()
