"""Whether a .safetensors file is whole: its header is read and held against the file's size. Reads no weights.

    ┌──────────────┬───────────────────────┬─────────────────────────────┐
    │ u64 length N │ N bytes of JSON       │ tensors, end to end         │
    └──────────────┴───────────────────────┴─────────────────────────────┘
                    name -> dtype, shape, data_offsets [begin, end) from the start of the tensors

Knows nothing of the model in it; needs no library.
"""

import json
from pathlib import Path
from typing import Any

from kvpager.errors import ModelError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_REMEDY = "Download or copy the file again."


def check_safetensors(path: Path) -> None:
    """Raises ModelError, naming ``path`` and the damage, unless the file is whole as its header has it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES:
                raise _damage(path, f"it has {size} bytes, less than the start of a header")
            if length > _LONGEST_HEADER:
                raise _damage(path, "it doesn't start with a safetensors header")
            header = file.read(length)
    except OSError as error:
        raise ModelError(
            f"{path} can't be read: {error.strerror}. Check that it exists and its permissions."
        ) from error
    if len(header) < length:
        raise _damage(path, f"it ends inside its header, after {size} of at least {_LENGTH_BYTES + length} bytes")
    _check_size(path, size, _LENGTH_BYTES + length + _tensor_bytes(path, header))


def _tensor_bytes(path: Path, header: bytes) -> int:
    """Where the last tensor ends, bytes from the start of the tensors."""
    try:
        entries: Any = json.loads(header)
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _damage(path, "its header is not the JSON of a safetensors file") from error
    return max(ends, default=0)


def _check_size(path: Path, size: int, expected: int) -> None:
    if size < expected:
        raise _damage(path, f"it is cut off after {size} of {expected} bytes")
    if size > expected:
        raise _damage(path, f"it has {size - expected} bytes more than its header describes")


def _damage(path: Path, fault: str) -> ModelError:
    return ModelError(f"{path} is damaged: {fault}. {_REMEDY}")
