"""The ``.gattn`` file: complete heads and traces in one safetensors file.

Its metadata holds one JSON text under the key ``gattn``: schema version, kind and content, with a
checksum. Arrays are named by the SHA-256 of their content, so the checksum covers them and equal
arrays are stored once. A structured token graph is stored as its rule. Nothing is ever unpickled.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gattn.errors import FileError
from gattn.files.checking import DEEPEST
from gattn.files.packing import Packer, canonical, digest_of
from gattn.files.plain import parsed
from gattn.files.unpacking import Unpacker
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace

_KEY = "gattn"
_SCHEMA = 1
_MOST_BYTES, _BYTES_PER_BYTE = 1 << 28, 256
"""How much memory any file may need, and how much per byte of its size."""
_KINDS = {"bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"}


def write(thing: AttentionGraph | AttentionTrace, path: Path) -> None:
    """Write a head or a trace."""
    packer = Packer()
    if isinstance(thing, AttentionTrace):
        kind, content = "trace", packer.pack_trace(thing)
    elif isinstance(thing, AttentionGraph):
        kind, content = "head", packer.pack(thing)
    else:
        raise FileError(
            f"A .gattn file holds an AttentionGraph or an AttentionTrace, not a "
            f"{type(thing).__name__}: save a networkx.DiGraph as .json or .graphml."
        )
    document = {"schema": _SCHEMA, "kind": kind, "shared": packer.shared, "content": content}
    text = canonical(document | {"checksum": _checksum(document)})
    save_file(packer.arrays, path, {_KEY: text})


def read(path: Path) -> AttentionGraph | AttentionTrace:
    """Read a head or a trace, and verify its checksum."""
    try:
        with safe_open(path, framework="np") as file:
            document = _checked(path, (file.metadata() or {}).get(_KEY))
            arrays = _Arrays(path, file)
            unpacker = Unpacker(arrays.read, path.stat().st_size)
            unpacker.unpack_shared(document["shared"])
            if document["kind"] == "trace":
                return unpacker.unpack_trace(document["content"])
            return unpacker.unpack_head(document["content"])
    except SafetensorError as error:
        raise FileError(
            f"{path} is not a .gattn file, or is damaged ({error}): save it again."
        ) from error
    except FileError:
        raise
    except OSError:
        raise
    except Exception as error:  # Foreign files can fail in any way.
        raise FileError(
            f"{path} does not have the layout of schema {_SCHEMA}: {error!r:.400}."
        ) from error


def _checked(path: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise FileError(f"{path} is a safetensors file that gattn did not write.")
    document: dict[str, Any] = parsed(text, 4 * DEEPEST)
    if document["schema"] != _SCHEMA:
        raise FileError(
            f"{path} has schema {document['schema']}, but this gattn reads {_SCHEMA}: a newer "
            "gattn wrote it; upgrade gattn."
        )
    checksum = document.pop("checksum")
    if checksum != _checksum(document):
        raise FileError(f"{path} is damaged: its checksum {checksum} does not match.")
    return document


class _Arrays:
    """Reads the arrays of a file as copies, whose total size is limited."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._checked: set[str] = set()
        self._left = max(_MOST_BYTES, _BYTES_PER_BYTE * path.stat().st_size)

    def read(self, name: str, kind: str) -> NDArray[Any]:
        """Read an array, and verify its checksum, which is its name."""
        if kind not in _KINDS:
            raise FileError(f"{self._path} holds an array of the unknown type {kind!r:.80}.")
        stored: NDArray[Any] = self._file.get_tensor(name)
        if stored.dtype.name != kind and (stored.dtype.name, kind) != ("int32", "int64"):
            raise FileError(f"{self._path} announces {kind} but holds {stored.dtype.name}.")
        array = stored.astype(kind, copy=False)
        self._left -= array.nbytes
        if self._left < 0:
            raise FileError(
                f"{self._path} needs far more memory than its size can justify: save it again."
            )
        if name not in self._checked and digest_of(stored) != name:
            raise FileError(
                f"{self._path} is damaged: the checksum of the array {name} does not match."
            )
        self._checked.add(name)
        return array


def _checksum(document: dict[str, Any]) -> str:
    return sha256(canonical(document).encode()).hexdigest()
