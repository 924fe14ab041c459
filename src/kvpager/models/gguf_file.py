"""Whether a .gguf file is whole, and what it says of itself. Reads the header, no weights.

    magic "GGUF" │ u32 version │ u64 tensors │ u64 pairs
    pairs:    string key, u32 type, value            string: u64 length, bytes    array: u32 type, u64 count, values
    tensors:  string name, u32 dimensions, u64 each, u32 type, u64 offset from the start of the data
    data:     at the next multiple of the alignment; all numbers little-endian

Every length is held against the bytes that are left, so a damaged file can't ask for memory. Knows nothing of the model
in it, or of the libraries that load it, except how many bytes a block of each quantised type takes.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvpager.errors import ModelError, UnsupportedModel
from kvpager.models.hugging_face import need

Scalar = int | float | bool | str

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32  # bytes
_MOST_DIMENSIONS = 8


class _Damage(Exception):
    """What is wrong with the file, without its name."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF says of itself: all its single values by key (arrays are left out), and how many tensors it has."""

    version: int
    num_tensors: int
    key_to_value: Mapping[str, Scalar]


class _Cursor:
    """A place in the file that moves forward; ``take`` never goes past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise _Damage(f"it is cut off inside its header, after {len(self.data)} bytes")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def whole(self, code: str = "<Q") -> int:
        return int(self.number(code))

    def text(self) -> str:
        return self.take(self.whole()).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Scalar | None:
        """The value here, or None for an array, which is stepped over."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise _Damage(f"a value has the unknown type {kind}")
        self._skip_array(self.whole("<I"), self.whole())
        return None

    def _skip_array(self, kind: int, count: int) -> None:
        if kind in _NUMBERS:
            self.take(count * struct.calcsize(_NUMBERS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self.take(self.whole())
        else:
            raise _Damage(f"an array holds the unknown type {kind}")


def read_gguf_header(path: Path) -> GGUFHeader:
    """The header of a whole GGUF file.

    Raises ModelError, naming ``path``, the damage and what to do, for a file that is not a GGUF or not whole;
    UnsupportedModel for a version or a part of a split model that can't be used; MissingExtra without ``gguf``.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise _Damage("it doesn't start with the letters GGUF, so it is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Cursor(data))
    except OSError as error:
        raise ModelError(
            f"{path} can't be read: {error.strerror}. Check that it exists and its permissions."
        ) from error
    except _Damage as damage:
        raise ModelError(f"{path} is damaged: {damage}. Download or copy the file again.") from damage


def _parse(path: Path, cursor: _Cursor) -> GGUFHeader:
    cursor.take(len(_MAGIC))
    version = cursor.whole("<I")
    if version not in _VERSIONS:
        raise UnsupportedModel(f"{path} is GGUF version {version}; versions 2 and 3, little-endian, can be read")
    num_tensors, num_pairs = cursor.whole(), cursor.whole()
    key_to_value: dict[str, Scalar] = {}
    for _ in range(num_pairs):
        key, kind = cursor.text(), cursor.whole("<I")
        value = cursor.value(kind)
        if value is not None:
            key_to_value[key] = value
    if int(key_to_value.get("split.count", 1)) > 1:
        raise UnsupportedModel(f"{path} is one part of a split model; merge the parts with `llama-gguf-split --merge`")
    _check_data(cursor, num_tensors, int(key_to_value.get("general.alignment", _DEFAULT_ALIGNMENT)))
    return GGUFHeader(version, num_tensors, key_to_value)


def _check_data(cursor: _Cursor, num_tensors: int, alignment: int) -> None:
    """That the file reaches to the end of its last tensor."""
    if alignment < 1:
        raise _Damage(f"its alignment is {alignment}")
    last = max((_tensor_end(cursor) for _ in range(num_tensors)), default=0)
    expected = -(-cursor.position // alignment) * alignment + last
    if num_tensors and len(cursor.data) < expected:
        raise _Damage(f"it is cut off after {len(cursor.data)} of {expected} bytes")


def _tensor_end(cursor: _Cursor) -> int:
    """Where the tensor described here ends, bytes from the start of the data."""
    name, dimensions = cursor.text(), cursor.whole("<I")
    if dimensions > _MOST_DIMENSIONS:
        raise _Damage(f"tensor {name!r} has {dimensions} dimensions")
    elements = math.prod(cursor.whole() for _ in range(dimensions))
    kind, offset = cursor.whole("<I"), cursor.whole()
    sizes = need("gguf", "reading a .gguf file").GGML_QUANT_SIZES
    if kind not in sizes:
        raise _Damage(f"tensor {name!r} has the unknown type {kind}")
    block_elements, block_bytes = (int(size) for size in sizes[kind])
    return offset + -(-elements // block_elements) * block_bytes  # whole blocks
