import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest
import torch

import gattn

CONCEPTS = (gattn.Edit, gattn.Keep, gattn.Normalizer, gattn.WeightFunction)
NOUNS = {
    "AttentionGraph",
    "AttentionTrace",
    "CaptureGraphs",
    "Features",
    "GraphAttention",
    "Pairs",
    "RayPool",
    "Survey",
    "TokenGraph",
}
FEATURE_MAPS = {"PerformerFeatures"}


def test_every_public_name_is_a_concept_of_the_glossary():
    for name in gattn.__all__:
        thing = getattr(gattn, name)
        if inspect.isclass(thing):
            is_concept = issubclass(thing, CONCEPTS) or name in NOUNS | FEATURE_MAPS
            assert is_concept, f"{name} is none of the glossary's words"
        else:
            assert inspect.isfunction(thing) or inspect.ismodule(thing), name
        assert inspect.getdoc(thing), f"{name} has no docstring"


def test_glossary_names_the_concepts():
    words = (
        "TokenGraph",
        "WeightFunction",
        "Normalizer",
        "AttentionGraph",
        "AttentionTrace",
        "Survey",
    )
    for word in words:
        assert f"`{word}`" in (gattn.__doc__ or ""), word


def test_dir_lists_every_name_and_package():
    assert set(gattn.__all__) <= set(dir(gattn))
    assert set(dir(gattn)) >= {"analysis", "drawing", "engines", "surveys", "testing"}


def test_type_checkers_and_users_see_the_same_names():
    stub = ast.parse(Path(gattn.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [alias.asname for node in imports for alias in node.names]
    assert sorted(names) == sorted(gattn.__all__)


@pytest.mark.parametrize("name", ["survey", "Survey", "surveys.head_statistics"])
def test_surveys_without_their_packages_say_in_one_line_how_to_get_them(name):
    code = f"import sys; sys.modules['duckdb'] = None; import gattn; gattn.{name}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = run.stderr.splitlines()[-1]
    assert last.endswith(
        "Surveys need pyarrow, DuckDB and filelock: pip install 'gattn[survey]'."
    ), run.stderr


@pytest.mark.slow
def test_without_surveys_all_else_is_listed_and_loads():
    code = (
        "import sys; sys.modules['duckdb'] = None; import gattn, inspect; from gattn import *; "
        "inspect.getmembers(gattn); help(gattn); print('listed', *gattn.__all__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    listed = run.stdout.splitlines()[-1].split()[1:]
    names = {"CaptureGraphs", "RayPool", "Survey", "open_survey", "survey"}
    assert set(gattn.__all__) - set(listed) == names, run.stderr
    stub = Path(gattn.__file__).with_suffix(".pyi").read_text()
    assert set(re.findall(r"^from \.surveys\S+ import (\w+)", stub, re.M)) == names


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(gattn, "attention_of_the_gaps")


def test_scores_and_attention_are_both_graphs_that_can_be_exported(tmp_path):
    query, key = torch.randn(2, 1, 4, 3, dtype=torch.float64)
    graph = gattn.TokenGraph.complete(4)
    for normalizer, expected in (
        (gattn.Identity(), query[0] @ key[0].T / 3**0.5),
        (gattn.Softmax(), torch.softmax(query[0] @ key[0].T / 3**0.5, -1)),
    ):
        head = gattn.attention_graphs(query, key, graph, normalizer=normalizer)[0]
        network = head.to_networkx()
        adjacency = nx.to_numpy_array(network, nodelist=range(4))
        torch.testing.assert_close(torch.from_numpy(adjacency.T), expected)
        head.save(tmp_path / "head.graphml")
        again = gattn.load(tmp_path / "head.graphml")
        assert (again.to_dense() == head.to_dense()).all()


def documented(thing):
    """List the parameters that a docstring names, and its sections."""
    doc = inspect.getdoc(thing)
    sections = dict(re.findall(r"(?ms)^(\w+)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", doc))
    named = re.findall(r"(?m)^(\S.*?)(?: : .*)?$", sections.get("Parameters", ""))
    return {name.lstrip("*") for names in named for name in names.split(", ")}, set(sections)


@pytest.mark.parametrize("module", ["", ".analysis", ".surveys", ".engines", ".testing"])
def test_docstrings_say_what_is_given_and_what_is_returned(module):
    package = import_module(f"gattn{module}")
    things = [getattr(package, name) for name in package.__all__]
    for thing in filter(callable, things):
        parameters, sections = documented(thing)
        signature = inspect.signature(thing)
        given = {name for name in signature.parameters if name not in ("args", "kwargs")}
        assert given <= parameters, thing
        if inspect.isfunction(thing) and signature.return_annotation != "None":
            assert sections & {"Returns", "Yields"}, thing
