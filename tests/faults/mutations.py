"""Damages files at random, and says what became of each: run by `test_mutations.py`.

As a script it does so in a process of its own, whose memory is bounded:
``python mutations.py FORMAT COUNT``.
"""

import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from file_samples import (
    added,
    assemble,
    dismantled,
    kept_head,
    same,
    sample_head,
    sample_trace,
    unrolled,
)

import gattn
from gattn.errors import FileError, GattnError
from gattn.files import load, save
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.surveys.inputs.inputs import read_inputs
from gattn.surveys.run.running import survey
from gattn.surveys.store.parts import part_path, write_file

SECONDS = 60
"""How long a damaged file may take."""
TABLES = ("texts", "edges", "queries", "heads", "tokens", "failures")
ODD = [None, True, -1, 0, 1, 3, 2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308]
ODD += ["", "x", "\ud800", "\0", "NaN", "1", [], [[]], {}, {"a": 1}, {"$shared": 0}]
ODD += [{"$tuple": []}, {"$float": "nan"}, {"$text": "\\u0000"}, {"Causal": {}}, [1, 2, 3]]


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flip bits, cut, splice, double, or overwrite; at least one byte is another."""
    data = bytearray(content)
    place, length = chance.randrange(len(data)), 1 + int(chance.paretovariate(0.7))
    piece = data[place : place + length]
    act = chance.randrange(8)
    if act < 3:
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif act == 3:
        del data[place:]
    elif act == 4:
        del data[place : place + length]
    elif act == 5:
        to = chance.randrange(len(data))
        data[to:to] = piece
    elif act == 6:
        data[place : place + len(piece)] = chance.randbytes(len(piece))
    else:
        to = chance.randrange(len(data))
        data[to : to + len(piece)] = piece
    return bytes(data)


def places_in(tree, place=()):
    """List the paths to all parts of a document."""
    yield place
    items = tree.items() if isinstance(tree, dict) else ()
    for key, part in enumerate(tree) if isinstance(tree, list) else items:
        yield from places_in(part, (*place, key))


def part_at(tree, place):
    for key in place:
        tree = tree[key]
    return tree


def damaged_document(document, chance: random.Random):
    """Replace, remove, move, double or nest parts of a document."""
    document = json.loads(json.dumps(document))
    for _ in range(chance.choice([1, 1, 2, 4])):
        *above, key = chance.choice([place for place in places_in(document) if place])
        parent = part_at(document, above)
        act = chance.randrange(6)
        if act < 2:
            parent[key] = chance.choice(ODD)
        elif act == 2:
            part = part_at(document, chance.choice(list(places_in(document))))
            parent[key] = json.loads(json.dumps(part))
        elif act == 3:
            del parent[key]
        elif act == 4 and isinstance(parent, list):
            parent.append(parent[key])
        elif isinstance(parent[key], int):
            parent[key] += chance.choice([-1, 1, 2**31, -(2**31)])
        else:
            depth = chance.choice([1, 3, 500])
            for _ in range(depth):
                parent[key] = [parent[key]]
            if depth == 500:
                return document
        if not isinstance(document, dict) or len(document) < 2:
            return document
    return document


def damaged_array(array, chance: random.Random):
    """Change an array's numbers, type or shape."""
    array = array.copy()
    act = chance.randrange(5)
    if act == 0 and array.size:
        odd = [np.nan, np.inf, -1, 2**31 - 1, 0, 1e30] if array.dtype.kind == "f" else [-1, 0, 7]
        array.flat[chance.randrange(array.size)] = chance.choice([*odd, odd[0]])
    elif act == 1:
        array = array.astype(chance.choice(["float16", "float64", "int8", "int32", "bool"]))
    elif act == 2:
        array = array[: chance.randrange(array.size + 1)]
    elif act == 3:
        array = array[None] if chance.random() < 0.5 else array[:, None]
    else:
        array = array[chance.sample(range(array.size), array.size)]
    return array


def exercised(thing) -> None:
    """Use a head for what would crash if its edges were not right."""
    if isinstance(thing, AttentionTrace):
        for head in thing.heads():
            exercised(head)
    if not isinstance(thing, AttentionGraph) or thing.graph.num_tokens > 100:
        return
    graph = thing.graph
    query, key = torch.ones(1, graph.num_queries, 2), torch.ones(1, graph.num_keys, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gattn.graph_attention(query, key, key, graph, engine="edges")
        thing.to_dense()
        thing.to_pandas()


class Format:
    """A format: its samples, and how one of their files is damaged."""

    def __init__(self, suffix, samples, signed=True):
        self.suffix, self.samples, self.signed = suffix, samples, signed

    def prepare(self, folder: Path) -> None:
        self.path = folder / f"damaged{self.suffix}"
        self.files = []
        for sample in self.samples:
            save(sample, self.path)
            self.files.append(self.path.read_bytes())

    def damage(self, chance: random.Random):
        """Write a damaged file; give the sample that it was."""
        number = chance.randrange(len(self.samples))
        self.path.write_bytes(damaged_bytes(self.files[number], chance))
        return self.samples[number]

    def outcome(self, sample) -> str:
        found = load(self.path)
        exercised(found)
        return "same" if same(sample, found) else "other"


class GattnContent(Format):
    """Files with good checksums, whose document or arrays are damaged."""

    def damage(self, chance):
        number = chance.randrange(len(self.samples))
        self.path.write_bytes(self.files[number])
        document, arrays = dismantled(self.path)
        if chance.random() < 0.5:
            name = chance.choice(sorted(arrays))
            text = json.dumps(document).replace(
                name, added(arrays, self._array(arrays, name, chance))
            )
            document = json.loads(text)
        else:
            document = damaged_document(document, chance)
        if not isinstance(document, dict):
            document = {"schema": 1, "kind": document}
        assemble(self.path, document, arrays)
        return self.samples[number]

    @staticmethod
    def _array(arrays, name, chance):
        return damaged_array(arrays[name], chance)


class JsonContent(Format):
    """Documents without a checksum, parts of which are damaged."""

    def damage(self, chance):
        number = chance.randrange(len(self.samples))
        document = json.loads(self.files[number])
        del document["sha256"]
        self.path.write_text(json.dumps(damaged_document(document, chance)))
        return self.samples[number]


class GraphmlContent(Format):
    """XML without a checksum, whose values are damaged."""

    def damage(self, chance):
        number = chance.randrange(len(self.samples))
        text = self.files[number].decode().rsplit("<!--", 1)[0]
        words = text.replace("<", '"<').replace(">", '>"').split('"')
        for _ in range(chance.choice([1, 1, 3])):
            odd = str(chance.choice([*ODD, *words])).encode("ascii", "replace").decode()
            words[chance.randrange(len(words))] = odd.replace("\0", "")
        self.path.write_text('"'.join(words).replace('"<', "<").replace('>"', ">"))
        return self.samples[number]


class SurveyFiles(Format):
    """Files of a survey, read by pyarrow, DuckDB and polars."""

    def __init__(self, signed=True):
        super().__init__(".parquet", [], signed)

    def prepare(self, folder):
        texts = ["The dog chased the cat.", "Dogs", "", "The cat ran."]
        self.folder = folder / "survey"
        survey(texts, out=self.folder, analyses=[], progress=False)
        self.paths = [part_path(self.folder, name, 0) for name in TABLES]
        self.files = [path.read_bytes() for path in self.paths]
        self.whole = [self._read(n) for n in range(4)]

    def damage(self, chance):
        number = chance.randrange(len(self.paths))
        self._damage(number, chance)
        return number, chance.randrange(4)

    def _damage(self, number, chance):
        self.paths[number].write_bytes(damaged_bytes(self.files[number], chance))

    def _read(self, reader):
        opened = gattn.open_survey(self.folder)
        if reader == 0:
            return repr([(n, trace) for n, trace in opened.traces()]), *(
                head.to_pandas().to_csv() for _, trace in opened.traces() for head in trace.heads()
            )
        if reader == 1:
            return tuple(opened.sql(f"from {name}").to_csv() for name in TABLES)
        if reader == 2:
            return tuple(opened.polars(name).collect().to_pandas().to_csv() for name in TABLES)
        return len(opened), opened.is_complete, repr(opened)

    def outcome(self, sample):
        number, reader = sample
        try:
            return "same" if self._read(reader) == self.whole[reader] else "other"
        finally:
            self.paths[number].write_bytes(self.files[number])


class SurveyContent(SurveyFiles):
    """Files with good checksums, whose cells or columns are damaged; read as traces."""

    def _damage(self, number, chance):
        path = self.paths[number]
        table = pq.read_table(path, partitioning=None)
        place = chance.randrange(table.num_columns)
        name, column = table.column_names[place], table.column(place)
        act = chance.randrange(5)
        if act == 0:
            table = table.drop_columns([name])
        elif act == 1:
            rows = [n for n in range(len(table)) if chance.random() < 0.8]
            table = table.take(pa.array(rows, pa.int64()))
        elif act == 2:
            rows = chance.sample(range(len(table)), len(table))
            table = table.take(pa.array(rows, pa.int64()))
        else:
            values = column.to_pylist()
            fitting = [odd for odd in [*ODD, *values] if self._fits(odd, column.type)]
            for _ in range(chance.choice([1, 1, len(values)]) if values else 0):
                values[chance.randrange(len(values))] = chance.choice(fitting)
            table = table.set_column(place, name, pa.array(values, column.type))
        write_file(table, path)

    @staticmethod
    def _fits(value, kind):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return False
        return True

    def damage(self, chance):
        number = chance.randrange(len(self.paths))
        self._damage(number, chance)
        return number, 0


class InputFiles(Format):
    """Files that a survey reads texts from; they have no checksum of gattn's."""

    def __init__(self, suffix):
        super().__init__(suffix, [], signed=False)

    def prepare(self, folder):
        self.path = folder / f"texts{self.suffix}"
        rows = [{"text": f'The "dog", number {n}\n', "n": n, "ids": [n]} for n in range(20)]
        if self.suffix == ".csv":
            lines = [f'{n},"The ""dog"", number {n}\n"' for n in range(20)]
            self.path.write_text("\n".join(["n,text", *lines]) + "\n")
        elif self.suffix == ".jsonl":
            self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), self.path)
        self.files = [self.path.read_bytes()]
        self.whole = self._read()

    def damage(self, chance):
        self.path.write_bytes(damaged_bytes(self.files[0], chance))

    def _read(self):
        return [(text.text, text.metadata, text.reason) for text in read_inputs(self.path)]

    def outcome(self, sample):
        return "same" if self._read() == self.whole else "other"


def formats():
    """Make all formats."""
    heads = [sample_head(("a", "b\0", "\ud800")), kept_head()]
    graphs = [sample_head(("a", "<b>")), kept_head(), unrolled()]
    return {
        "gattn": Format(".gattn", [*heads, sample_trace()]),
        "json": Format(".json", graphs),
        "graphml": Format(".graphml", graphs),
        "survey": SurveyFiles(),
        "gattn content": GattnContent(".gattn", [*heads, sample_trace()], signed=False),
        "json content": JsonContent(".json", graphs, signed=False),
        "graphml content": GraphmlContent(".graphml", graphs, signed=False),
        "survey content": SurveyContent(signed=False),
        "csv inputs": InputFiles(".csv"),
        "jsonl inputs": InputFiles(".jsonl"),
        "parquet inputs": InputFiles(".parquet"),
    }


def run(name: str, count: int, folder: Path) -> dict:
    """Damage files of a format so many times.

    Raises
    ------
    AssertionError
        Where one is neither refused nor read for what it was, or takes too long.
    """
    form, seen, slowest = formats()[name], Counter(), 0.0
    form.prepare(folder)
    for number in range(count):
        sample = form.damage(random.Random(f"{name} {number}"))
        began = time.process_time()
        try:
            outcome = form.outcome(sample)
        except GattnError as error:
            outcome = "refused" if isinstance(error, FileError) else repr(error)[:500]
        except BaseException as error:
            raise AssertionError(f"{name} {number}: {error!r:.500}") from error
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        assert outcome in ("same", "other", "refused"), f"{name} {number}: {outcome}"
        assert seconds < SECONDS, f"{name} {number}: {seconds:.1f} s"
        assert not (form.signed and outcome == "other"), f"{name} {number}: other data"
        seen[outcome] += 1
    return {**seen, "slowest": round(slowest, 3)}


def main() -> None:
    """Run one format with little memory more than what is loaded by then, and say how it went."""
    import resource

    name, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    try:
        formats()[name].prepare(folder)
        bound = partial(resource.getrusage, resource.RUSAGE_SELF)
        before = bound().ru_maxrss
        shutil.rmtree(folder)
        folder.mkdir()
        found = run(name, count, folder)
        found["megabytes"] = (bound().ru_maxrss - before) // 1024
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
