"""The bytes of a slab file; docs/disk-format.md draws them. Knows no file system.

    [superblock, 4,096 bytes][header table: 512 bytes per slot][zeros up to a multiple of 4,096][slot 0][slot 1] ...

All numbers are little-endian. A header is one sector, which disks write whole.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.checksum import checksum
from kvpager.types import ContentKey

BLOCK = 4096  # slabs, slots and direct transfers are multiples of it
VERSION = 1
HEADER_BYTES = 512
SEALED, PACKED = 1, 2  # flags of a header

_SLAB_MAGIC = b"KVPGSLAB"
_SLOT_MAGIC = b"KVPGSLOT"
_ENCODING_BYTES = 32


def _record(size: int, *fields: tuple[str, object, int]) -> np.dtype:
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


SUPERBLOCK = _record(
    BLOCK,
    ("magic", "<u8", 0),
    ("version", "<u4", 8),
    ("slots", "<u4", 12),
    ("slab", "<u8", 16),
    ("slot_bytes", "<u8", 24),
    ("table_at", "<u8", 32),
    ("slots_at", "<u8", 40),
    ("file_bytes", "<u8", 48),
    ("encoding", ("u1", _ENCODING_BYTES), 56),
    ("crc", "<u8", BLOCK - 8),
)
HEADER = _record(
    HEADER_BYTES,
    ("magic", "<u8", 0),
    ("version", "<u4", 8),
    ("flags", "<u4", 12),
    ("generation", "<u8", 16),
    ("slab", "<u8", 24),
    ("slot", "<u8", 32),
    ("key", ("u1", 32), 40),
    ("parent", ("u1", 32), 72),
    ("identity", ("u1", 32), 104),
    ("payload_bytes", "<u8", 136),
    ("payload_crc", "<u8", 144),
    ("page_crc", "<u8", 152),
    ("nonce", ("u1", 24), 160),
    ("tag", ("u1", 32), 184),
    ("crc", "<u8", HEADER_BYTES - 8),
)
NAMED_BYTES = 136  # of a header: what the page is and where it lies, without what its bytes are; a seal covers these


def round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class Shape:
    """Where things lie in a slab of ``slots`` slots of ``slot_bytes``."""

    slots: int
    slot_bytes: int

    @property
    def slots_at(self) -> int:
        return BLOCK + round_up(self.slots * HEADER_BYTES)

    @property
    def file_bytes(self) -> int:
        return self.slots_at + self.slots * self.slot_bytes

    def header_at(self, slot: int) -> int:
        return BLOCK + slot * HEADER_BYTES

    def slot_at(self, slot: int) -> int:
        return self.slots_at + slot * self.slot_bytes

    @staticmethod
    def most_slots(file_bytes: int, slot_bytes: int) -> int:
        """How many slots a slab of at most ``file_bytes`` has; 0 where not even one fits."""
        slots = max(0, (file_bytes - BLOCK) // (slot_bytes + HEADER_BYTES))
        while slots and Shape(slots, slot_bytes).file_bytes > file_bytes:
            slots -= 1
        return slots


@dataclass(frozen=True, slots=True)
class Superblock:
    slab: int
    shape: Shape
    encoding: str

    def to_bytes(self) -> np.ndarray:
        """uint8 [4096]."""
        raw = np.zeros(1, SUPERBLOCK)
        raw["magic"] = int.from_bytes(_SLAB_MAGIC, "little")
        raw["version"] = VERSION
        raw["slots"], raw["slab"], raw["slot_bytes"] = self.shape.slots, self.slab, self.shape.slot_bytes
        raw["table_at"], raw["slots_at"], raw["file_bytes"] = BLOCK, self.shape.slots_at, self.shape.file_bytes
        encoding = self.encoding.encode("ascii")
        raw["encoding"][0, : len(encoding)] = list(encoding)
        content = raw.view(np.uint8)
        raw["crc"] = checksum(content[:-8])
        return content

    @staticmethod
    def parse(content: np.ndarray) -> "Superblock | Unknown | None":
        """None where it is damaged, ``Unknown`` where it is of a version that can't be read here."""
        raw = content.view(SUPERBLOCK)[0]
        if int(raw["magic"]).to_bytes(8, "little") != _SLAB_MAGIC:
            return None
        if raw["crc"] != checksum(content[:-8]):
            return None
        if raw["version"] != VERSION:
            return Unknown(int(raw["version"]))
        shape = Shape(int(raw["slots"]), int(raw["slot_bytes"]))
        at = (int(raw["table_at"]), int(raw["slots_at"]), int(raw["file_bytes"]))
        if shape.slots < 1 or shape.slot_bytes < 1 or at != (BLOCK, shape.slots_at, shape.file_bytes):
            return None
        encoding = raw["encoding"].tobytes().rstrip(b"\0").decode("ascii", "replace")
        return Superblock(int(raw["slab"]), shape, encoding)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A slab that a later kvpager wrote. Its first 12 bytes and its last 8 of the superblock never change meaning."""

    version: int


# -- headers ---------------------------------------------------------------------------------------------------------


def begin_header(header: np.ndarray, slab: int, slot: int, generation: int) -> None:
    """``header``: HEADER [1], all zeros, here and below."""
    header["magic"] = int.from_bytes(_SLOT_MAGIC, "little")
    header["version"] = VERSION
    header["generation"], header["slab"], header["slot"] = generation, slab, slot


def name_page(header: np.ndarray, key: ContentKey, parent: ContentKey, identity: bytes) -> None:
    for name, digest in (("key", key), ("parent", parent), ("identity", identity)):
        header[name] = np.frombuffer(digest, np.uint8)


def named_part(header: np.ndarray) -> bytes:
    """What a seal covers besides the payload, so that no page passes for another."""
    return header.view(np.uint8)[:NAMED_BYTES].tobytes()


def finish(header: np.ndarray) -> None:
    """What describes the payload is in it now, too."""
    header["crc"] = checksum(header.view(np.uint8)[:-8])


def is_written(headers: np.ndarray) -> np.ndarray:
    """Bool per header: whether there is anything. An empty header is all zeros."""
    words: np.ndarray = headers.view("<u8").reshape(len(headers), HEADER_BYTES // 8)
    return np.asarray(words.any(axis=1))


def is_whole(headers: np.ndarray, superblock: Superblock, first_slot: int) -> np.ndarray:
    """Bool per header of the slots from ``first_slot`` on: whether it is what was written there."""
    fits = headers["magic"] == int.from_bytes(_SLOT_MAGIC, "little")
    fits &= headers["version"] == VERSION
    fits &= headers["slab"] == superblock.slab
    fits &= headers["slot"] == np.arange(first_slot, first_slot + len(headers), dtype=np.uint64)
    fits &= headers["payload_bytes"] <= superblock.shape.slot_bytes
    content = headers.view(np.uint8).reshape(len(headers), HEADER_BYTES)
    for slot in np.flatnonzero(fits).tolist():
        fits[slot] = headers["crc"][slot] == checksum(content[slot, :-8])
    return fits


def digests(column: np.ndarray) -> list[ContentKey]:
    """Keys of a column uint8 [n, 32]."""
    raw = column.tobytes()
    return [ContentKey(raw[at : at + 32]) for at in range(0, len(raw), 32)]
