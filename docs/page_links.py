"""Adds links to pages: to the pages of a folder, to tutorials, to the API, and from the search."""

import re
from inspect import ismodule
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

import gattn

LISTS = {
    "start": "guide",
    "concepts/index": (
        "token_graphs\nweight_functions\nnormalizers\ngraphs\nedits\nany_model\nengines"
    ),
    "coming_from/index": "bertviz\ncircuitsvis\ntransformer_lens\ntorch_geometric\ntimm\ncaptum",
    "analyses": "analyses/*",
    "drawing": "\n".join(
        f"drawing/{x}" for x in ("gallery", "one_head", "all_heads", "where", "flow", "page")
    ),
}
"""Pages that link to all pages of a folder in their text; the sidebar needs a list of them."""


TERMS = {
    "analyses/circuits": "circuit, path patching",
    "analyses/heads": "head table, induction score, induction head, sparsity",
    "analyses/rollout": "attention rollout",
    "concepts/any_model": "KV cache, padding, sequence to sequence",
    "concepts/edits": "cut an edge, ablation, knockout, patching",
    "drawing": "plot, visualize, attention pattern",
    "drawing/all_heads": "heatmap",
    "models": "supported models",
}
"""What readers search for, and the page that they should find first."""


def _add_terms(app: Any, name: str, source: list[str]) -> None:
    if name in TERMS:
        title, text = source[0].split("\n", 1)
        entries = ", ".join(f"! {term}" for term in TERMS[name].split(", "))
        source[0] = f"{title}\n\n```{{index}} {entries}\n```\n{text}"


def _add_list(app: Any, name: str, source: list[str]) -> None:
    if name in LISTS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{LISTS[name]}\n```\n"


def _add_tutorials(app: Any, name: str, source: list[str]) -> None:
    """List below an analysis the tutorials that use its functions, as named in the index."""
    if not name.startswith("analyses/"):
        return
    index = (Path(app.srcdir) / "analyses.md").read_text(encoding="utf-8").splitlines()
    rows = [row.split("|")[2] for row in index if f"({name}.md)" in row]
    functions = " ".join(
        x if x.startswith("gattn.") else f"gattn.analysis.{x}"
        for row in rows
        for x in row.split("`")[1::2]
    )
    source[0] += f"\n## Tutorials\n\n```{{eval-rst}}\n.. minigallery:: {functions}\n```\n"


def _link_tutorials(app: Any, name: str, source: list[str]) -> None:
    """Make links to examples lead to their tutorials."""
    source[0] = re.sub(r"\((?:\.\./)+examples/(plot_\w+)\.py\)", r"(/gallery/\1.rst)", source[0])


HOMES = {name: gattn for name in gattn.__all__ if not ismodule(getattr(gattn, name))}
HOMES |= {name: gattn.analysis for name in gattn.analysis.__all__ if name not in HOMES}
NAME = re.compile(r"(?:gattn\.)?(?:analysis\.)?(\w+)((?:\.\w+)?)(?:\(.*\))?")


def _link_names(app: Any, doctree: nodes.document) -> None:
    """Link public names in the text of Markdown pages to the API."""
    if not str(app.env.doc2path(app.env.docname)).endswith(".md"):
        return
    for literal in list(doctree.findall(nodes.literal)):
        found = NAME.fullmatch(literal.astext())
        if not found or found[1] not in HOMES or _is_linked(literal):
            continue
        target = f"{HOMES[found[1]].__name__}.{found[1]}{found[2]}"
        link = pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refdoc=app.env.docname
        )
        literal.replace_self(link)
        link += literal


def _is_linked(node: Any) -> bool:
    """Whether a node is within a link, which holds no other."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.reference | pending_xref):
            return True
    return False


def setup(app: Any) -> None:
    """Connect the functions above to the build."""
    app.connect("source-read", _link_tutorials)
    app.connect("doctree-read", _link_names)
    app.connect("source-read", _add_terms)
    app.connect("source-read", _add_list)
    app.connect("source-read", _add_tutorials)
