"""How well heads match dependency trees, beside the best fixed offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Table
from gattn.analysis.syntax.conllu import Sentence
from gattn.analysis.syntax.trees import Direction, largest, tree_heads
from gattn.analysis.syntax.words import Matrix, aligned
from gattn.edit_records import Described
from gattn.errors import SelectionError
from gattn.heads.nouns import counted
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.progress import walk

ALL = "all relations"
"""The name of all relations together; CoNLL-U has none with a space."""


class Alignment(Table):
    """How well heads match dependency trees; see `dependency_alignment`."""

    def best(self) -> Alignment:
        """Find the best head and direction of each relation, the most frequent relation first.

        Returns
        -------
        Table
            By ``relation``: ``layer``, ``head``, ``direction``, ``accuracy``, and
            ``offset``, ``offset_accuracy`` and ``number`` as they were.
        """
        rows = []
        directions = get_args(Direction)
        for relation, some in self.groupby(level="relation", sort=False):
            shares = some[list(directions)].to_numpy()
            place, column = divmod(int(shares.argmax()), len(directions))
            layer, head, _ = some.index[place]
            row = {"relation": relation, "layer": layer, "head": head}
            row |= {"direction": directions[column], "accuracy": shares[place, column]}
            rows.append(row | dict(some[["offset", "offset_accuracy", "number"]].iloc[place]))
        rows.sort(key=lambda row: -row["number"])
        made = Alignment(rows).set_index("relation").astype({"offset": int, "number": int})
        made.attrs = dict(self.attrs)
        return made


def dependency_alignment(
    traces: AttentionTrace | Stack | Sequence[AttentionTrace | Stack],
    sentences: Sentence | Sequence[Sentence],
    *,
    trees: bool = False,
    progress: bool = True,
) -> Alignment:
    r"""Return how often heads connect words as dependency trees do, beside the best fixed offset.

    Tokens are merged into the trees' words: columns are summed, rows averaged. With A without its
    diagonal and special tokens, a dependency of word d on head h is found if

    - ``dependent_to_head``: :math:`h = \arg\max_j A_{dj}`, the word reads its head most;
    - ``head_to_dependent``: :math:`h = \arg\max_i A_{id}`, its head reads it most.

    The best fixed offset always names the word o places later as the head; o is the most frequent
    one of the relation in these sentences. A head that does no better knows positions, not syntax.

    Parameters
    ----------
    traces : AttentionTrace, Stack, or several
        Self-attention, one for each sentence: ``gattn.capture(sentence.text)``.
    sentences : Sentence, or several
        Trees, as `read_conllu` reads them.
    trees : bool
        Whether to match maximum spanning arborescences, too: ``tree`` is the share of dependencies
        in that of ``dependent_to_head``. Without causal masks this takes long.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Alignment
        By ``layer``, ``head`` and ``relation``, "all relations" being all of them together: the
        share of dependencies found in each direction; ``offset`` and ``offset_accuracy``;
        ``number`` of dependencies. `Alignment.best` has the best head of each relation.

    Raises
    ------
    SelectionError
        If there are not as many traces as sentences, or they are of other texts, heads or layers,
        it is not self-attention, or a relation is called "all relations".
    ShapeError
        If attention is negative.

    References
    ----------
    Clark et al. (2019), What does BERT look at? Htut et al. (2019), Do attention heads in BERT
    track syntactic dependencies?
    """
    texts = [sentences] if isinstance(sentences, Sentence) else list(sentences)
    runs = [traces] if isinstance(traces, (AttentionTrace, Stack)) else list(traces)
    if not texts or len(runs) != len(texts):
        raise SelectionError(
            f"Each trace goes with one sentence, but there are {len(runs)} traces and {len(texts)} "
            "sentences."
        )
    found = _Found([*get_args(Direction), *(["tree"] if trees else [])])
    pairs = list(zip(runs, texts, strict=True))
    fewer = "fewer sentences take less, and so does trees=False" if trees else "fewer sentences"
    for run, sentence in walk(pairs, "alignment", "sentence", progress=progress, fewer=fewer):
        found.add(layers_of(run).square(), sentence)
    return found.table()


@dataclass(eq=False)
class _Found:
    """The dependencies of all sentences, and which heads find them.

    `hits` has one array (columns, layers, heads, dependencies) per sentence.
    """

    columns: Sequence[str]
    hits: list[NDArray[np.bool_]] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    source: str = ""
    edits: dict[Described, None] = field(default_factory=dict)
    mass: float = 0.0
    dropped: float = 0.0
    lost: int = 0
    is_causal: bool = True

    def add(self, layers: Layers, sentence: Sentence) -> None:
        """Look for a sentence's dependencies."""
        if self.hits and (layers.layers, layers.heads) != (self.layers, self.heads):
            raise SelectionError("The traces have other layers or heads: capture all alike.")
        if ALL in sentence.relations:
            raise SelectionError(f"The relation name {ALL!r} is reserved for the total: rename it.")
        self.layers, self.heads = layers.layers, layers.heads
        self.edits |= dict.fromkeys(layers.read_from.edits)
        self.source = str(replace(layers.read_from, size=""))
        self.mass += float(layers.mass.sum())
        self.dropped += float(layers.dropped.sum())
        words, unit_of = aligned(layers.tokens, sentence)
        pairs = []
        for word, (head, relation) in enumerate(
            zip(sentence.heads, sentence.relations, strict=True)
        ):
            if head is None:
                continue
            if unit_of[word] == unit_of[head]:
                self.lost += 1
                continue
            pairs.append((unit_of[word], unit_of[head]))
            self.relations.append(relation)
            self.offsets.append(unit_of[head] - unit_of[word])
        dependent, parent = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        matrices = (layers.read(n).double().cpu().numpy() for n in range(len(layers)))
        guesses = [self._guesses(words.matrix(matrix)) for matrix in matrices]
        self.hits.append(np.stack(guesses, 1)[..., dependent] == parent)

    def _guesses(self, matrix: Matrix) -> NDArray[np.int64]:
        """Return each word's head by the heads of a layer, (columns, heads, words)."""
        self.is_causal &= not np.triu(matrix).any()
        guesses = [largest(matrix), largest(matrix.swapaxes(1, 2))]
        if "tree" in self.columns:
            guesses.append(np.stack([tree_heads(one) for one in matrix]))
        return np.stack(guesses)

    def table(self) -> Alignment:
        """Return the shares."""
        if not self.offsets:
            raise SelectionError("The sentences have no dependencies between different words.")
        hits, offsets = np.concatenate(self.hits, -1), np.array(self.offsets)
        numbers = Counter(self.relations)
        names = sorted(numbers, key=lambda name: (-numbers[name], name))
        relations = np.array(self.relations, dtype=object)
        chosen = [np.ones(len(offsets), dtype=bool), *(relations == name for name in names)]
        shares = np.stack([hits[..., some].mean(-1) for some in chosen], -1)
        places = [self.layers, self.heads, [ALL, *names]]
        index = pd.MultiIndex.from_product(places, names=["layer", "head", "relation"])
        best = [Counter(offsets[some].tolist()).most_common(1)[0] for some in chosen]
        number = np.array([some.sum() for some in chosen])
        of_relations = {
            "offset": np.array([offset for offset, _ in best]),
            "offset_accuracy": np.array([found for _, found in best]) / number,
            "number": number,
        }
        repeats = len(index) // len(chosen)
        columns = dict(zip(self.columns, shares.reshape(len(shares), -1), strict=True))
        columns |= {name: np.tile(values, repeats) for name, values in of_relations.items()}
        return Alignment.of(
            pd.DataFrame(columns, index=index),
            name="dependency alignment",
            computed_from=f"{counted(len(self.hits), 'sentence')}; {self.source}",
            notes=self._notes(),
            edits=self.edits,
        )

    def _notes(self) -> list[str]:
        notes = []
        if self.is_causal:
            share = np.mean(np.array(self.offsets) < 0)
            notes.append(
                f"causal: dependent_to_head can find the {share * 100:.0f} % of heads in front"
            )
        if self.dropped > 1e-6 * self.mass:
            notes.append(f"{self.dropped / self.mass * 100:.2f} % of the attention was not kept")
        if self.lost:
            notes.append(f"left out, as they lie within a token: {self.lost}")
        return notes
