"""The training text: Python's own documentation, and generated plain-English stories."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from stories import words, write_stories

SKIPPED_FOLDERS = frozenset(
    words(
        "site-packages test tests idle_test lib2to3 turtledemo encodings _bundled __pycache__ "
        "pydoc_data"
    )
)
SEPARATOR = "\n%%\n"
STORY_SEED = 1
STORY_SIZE = 800_000
HELD_OUT_SHARE = 40


@dataclass
class Corpus:
    """Documents by source, and the documents held out from training."""

    docs: list[str]
    stories: list[str]
    heldout: list[str]

    def sha256(self) -> str:
        """Return the digest of the training documents in order."""
        text = SEPARATOR.join(self.docs + self.stories)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


def clean(text: str) -> str:
    """Remove rulers, trailing spaces and runs of blank lines."""
    lines = [line.rstrip() for line in text.expandtabs(4).splitlines()]
    lines = [line for line in lines if not re.fullmatch(r"\s*([-=*~^#_+.])\1{3,}\s*", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def comments(source: str) -> list[str]:
    """Collect the blocks of at least three comment lines in a Python source."""
    blocks: list[str] = []
    block: list[str] = []
    for line in [*source.splitlines(), ""]:
        stripped = line.strip()
        if stripped.startswith("#") and not stripped.startswith("#!"):
            block.append(stripped.lstrip("#").removeprefix(" "))
            continue
        if sum(bool(part) for part in block) >= 3:
            blocks.append("\n".join(block))
        block = []
    return blocks


def docstrings(source: str) -> list[str]:
    """Collect the docstrings of a Python source, in the order of the tree walk."""
    found = []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds):
            text = ast.get_docstring(node)
            if text:
                found.append(text)
    return found


def sources() -> list[tuple[str, list[str]]]:
    """List the name and texts of each source: reference topics, library modules."""
    from pydoc_data.topics import topics

    found = [(f"topic {name}", [topics[name]]) for name in sorted(topics)]
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            texts = docstrings(source) + comments(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        if texts:
            found.append(("/".join(parts), texts))
    return found


def is_held_out(name: str) -> bool:
    """Return whether a source is held out, which a digest of its name decides."""
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def paragraphs(text: str) -> list[str]:
    """Split off the paragraphs of a text."""
    return [part for part in text.split("\n\n") if part.strip()]


def key(paragraph: str) -> str:
    """Remove case and spacing from a paragraph, to recognize repeats."""
    return " ".join(paragraph.lower().split())


def fresh(text: str, seen: set[str]) -> str:
    """Drop the longer paragraphs of a text that are in `seen`, and add the others to it."""
    kept = []
    for part in paragraphs(clean(text)):
        name = key(part)
        if len(name) > 40:
            if name in seen:
                continue
            seen.add(name)
        kept.append(part)
    return "\n\n".join(kept)


def build_corpus() -> Corpus:
    """Collect and clean the text of this Python, and generate the stories.

    Returns
    -------
    Corpus
        No paragraph of more than 40 characters stands in it twice, so that none of the
        held-out paragraphs is trained on.
    """
    seen: set[str] = set()
    docs: list[str] = []
    heldout: list[str] = []
    every = sources()
    for chosen, target in ((True, heldout), (False, docs)):
        for name, texts in every:
            if is_held_out(name) is not chosen:
                continue
            parts = [fresh(text, seen) for text in texts]
            document = "\n\n".join(part for part in parts if part)
            if len(document) >= 200:
                target.append(document)
    return Corpus(docs, write_stories(STORY_SEED, STORY_SIZE), heldout)


def main() -> None:
    """Print the sizes of the corpus, and write the held-out text next to this file."""
    corpus = build_corpus()
    path = Path(__file__).with_name("heldout.txt")
    path.write_text(SEPARATOR.join(corpus.heldout) + "\n", encoding="utf-8")
    for name in ("docs", "stories", "heldout"):
        texts = getattr(corpus, name)
        size = sum(len(text.encode("utf-8")) for text in texts)
        print(f"{name}: {len(texts)} documents, {size} bytes")
    print(f"Python {sys.version.split()[0]}, sha256 {corpus.sha256()}")


if __name__ == "__main__":
    main()
