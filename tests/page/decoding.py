"""Reads a page back, independently of the code that wrote it."""

import base64
import json
import re
import zlib

import numpy as np

SCRIPT = re.compile(r'<script type="[^"]+" id="gattn-([a-z0-9-]+)">(.*?)</script>', re.DOTALL)


class Decoded:
    """The header and the raw blocks of a page."""

    def __init__(self, text):
        found = dict(SCRIPT.findall(text))
        self.header = json.loads(found.pop("header"))
        self.blocks = {int(name.removeprefix("block-")): data for name, data in found.items()}

    def block(self, number):
        return zlib.decompress(base64.b64decode(self.blocks[number]), wbits=-15)

    def stacks(self, trace=0):
        return {stack["name"]: stack for stack in self.header["traces"][trace]["stacks"]}

    def head(self, stack, layer, head, trace=0):
        found = self.stacks(trace)[stack]
        (entry,) = (g for g in found["graphs"] if (g["layer"], g["head"]) == (layer, head))
        keys = len(found["keys"]["tokens"])
        return self.numbers(entry, found["numQueries"], keys, found["offset"])

    def numbers(self, entry, queries, keys, offset):
        """Give query and key of each edge, its values, and each query's mass and sink."""
        self.data, self.at = self.block(entry["block"]), 0
        if entry["pattern"] == "complete":
            query, key = np.divmod(np.arange(queries * keys), keys)
        elif entry["pattern"] == "causal":
            query, key = np.nonzero(np.tri(queries, keys, offset))
        else:
            degree = self.take("<u4", queries)
            query = np.repeat(np.arange(queries), degree)
            step = self.take("<u4", int(degree.sum())).astype(int)
            key = np.concatenate([[], *map(np.cumsum, np.split(step, np.cumsum(degree)))])
        found = {"query": query, "key": key.astype(int)}
        for name, scale in entry["values"].items():
            found[name] = self.coded(scale, len(query))
        found["total_mass"] = self.take("<f4", queries)
        if entry["sink"]:
            found["sink"] = self.coded(entry["sink"], queries)
        assert self.at == len(self.data)
        return found

    def coded(self, scale, count):
        low, high = scale
        codes = self.take("<u2", count).astype(float)
        codes[codes == 65535] = np.nan
        return low + codes * (high - low) / self.header["levels"]

    def take(self, kind, count):
        size = np.dtype(kind).itemsize
        planes = np.frombuffer(self.data, np.uint8, size * count, self.at).reshape(size, count)
        self.at += size * count
        return np.ascontiguousarray(planes.T).view(kind)[:, 0]
