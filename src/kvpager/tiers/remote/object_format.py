"""An object of the remote tier: a header of 192 bytes, and the payload. Knows bytes; no store and no books.

      0  magic            8   "kvpager" 0
      8  version          4   1
     12  header bytes     4   192
     16  key             32   the content key
     48  identity        32   digest of whatever else must be equal: layout, dtype, page size
     80  page bytes       8   as the cache keeps it
     88  payload bytes    8   as they follow
     96  checksum         8   CRC-64/NVME of the page's bytes
    104  packing         16   name of how the page was made smaller, padded with zeros; zeros: it was not
    120  seal            16   name of how the payload was sealed, padded with zeros; zeros: it was not
    136  nonce           16   of the seal, padded with zeros
    152  tag             32   of the seal, padded with zeros
    184  reserved         8   zeros

Integers are little-endian and unsigned. A header is right if it is, byte for byte, the one that would be written here
and now; only packing or not, payload bytes, checksum, nonce and tag are taken from it, and what follows must fit them.
A reader that knows another version, or another identity, calls the object wrong and computes the page.

A seal vouches for the payload and for this header with payload bytes, nonce and tag left at zero.
"""

import struct
from dataclasses import dataclass, replace

import numpy as np

from kvpager.checksum import checksum, copy_checksum
from kvpager.errors import WrongContent
from kvpager.tiers.sealing import Packing, Seal
from kvpager.types import ContentKey

MAGIC = b"kvpager\0"
VERSION = 1
_HEADER = struct.Struct("<8sII32s32sQQQ16s16s16s32s8x")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 192


@dataclass(frozen=True, slots=True)
class _Header:
    key: ContentKey
    identity: bytes
    page_bytes: int
    payload_bytes: int
    checksum: int
    packing: bytes
    seal: bytes
    nonce: bytes = b""
    tag: bytes = b""

    def pack(self) -> bytes:
        return _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self.key,
            self.identity,
            self.page_bytes,
            self.payload_bytes,
            self.checksum,
            self.packing,
            self.seal,
            self.nonce,
            self.tag,
        )

    def sealed_part(self) -> bytes:
        return replace(self, payload_bytes=0, nonce=b"", tag=b"").pack()


class ObjectFormat:
    """Objects for pages of ``page_bytes``. ``identity``: 32 bytes. Used by several threads at once."""

    def __init__(
        self, page_bytes: int, identity: bytes, packing: Packing | None = None, seal: Seal | None = None
    ) -> None:
        assert len(identity) == 32
        self.page_bytes = page_bytes
        self._identity = identity
        self._packing, self._seal = packing, seal
        self._packing_name = b"" if packing is None else packing.name.encode("ascii")
        self._seal_name = b"" if seal is None else seal.name.encode("ascii")
        assert max(len(self._packing_name), len(self._seal_name)) <= 16

    @property
    def max_bytes(self) -> int:
        """Of an object that may be right."""
        return HEADER_BYTES + self.page_bytes

    def why_not_in_parts(self) -> str:
        """Why a part of a page can't be read by itself; empty where its bytes follow the header as they are."""
        if self._packing is None and self._seal is None:
            return ""
        ways = " and ".join(part.name for part in (self._packing, self._seal) if part is not None)
        return (
            f"the remote tier keeps its pages {ways}, which can be read as a whole only: open it without compress and "
            f"key_file, or bring a host or disk tier between"
        )

    def wrap(self, key: ContentKey, page: np.ndarray, expected: int | None) -> bytes:
        """The object for ``page``. Raises WrongContent if the page has not the ``expected`` checksum."""
        found = checksum(page)
        if expected is not None and expected != found:
            raise WrongContent("a page is not what left the device")
        packed = None if self._packing is None else self._packing.pack(page)
        payload = page if packed is None else np.frombuffer(packed, np.uint8)
        packing = b"" if packed is None else self._packing_name
        header = _Header(key, self._identity, self.page_bytes, 0, found, packing, self._seal_name)
        if self._seal is not None:
            sealed = self._seal.seal(payload, header.sealed_part())
            header, payload = replace(header, nonce=sealed.nonce, tag=sealed.tag), sealed.payload
        return b"".join((replace(header, payload_bytes=payload.nbytes).pack(), payload.data))

    def unwrap(self, key: ContentKey, found: bytes, into: np.ndarray) -> int:
        """Fills ``into`` with the page of an object and returns its checksum.

        Raises WrongContent unless the object is right in every bit; what is in ``into`` then is undefined.
        """
        header = self._header(key, found)
        payload = np.frombuffer(found, np.uint8, offset=HEADER_BYTES)
        is_packed = bool(header.packing)
        if not is_packed and self._seal is None:
            if payload.nbytes != into.nbytes:
                raise WrongContent(f"an object holds {payload.nbytes} bytes, not a page of {into.nbytes}")
            actual = copy_checksum(into, payload)
        else:
            self._open(header, payload, into)
            actual = checksum(into)
        if actual != header.checksum:
            raise WrongContent("an object's bytes are not what was stored in it")
        return actual

    def _header(self, key: ContentKey, found: bytes) -> _Header:
        if len(found) < HEADER_BYTES:
            raise WrongContent(f"an object of {len(found)} bytes is shorter than its header")
        payload_bytes, its_checksum, packing, _, nonce, tag = _HEADER.unpack_from(found)[6:]
        is_packed = self._packing is not None and any(packing)
        nonce_bytes, tag_bytes = (0, 0) if self._seal is None else (self._seal.nonce_bytes, self._seal.tag_bytes)
        header = _Header(
            key,
            self._identity,
            self.page_bytes,
            payload_bytes,
            its_checksum,
            self._packing_name if is_packed else b"",
            self._seal_name,
            nonce[:nonce_bytes],
            tag[:tag_bytes],
        )
        if header.pack() != found[:HEADER_BYTES]:
            raise WrongContent("an object's header belongs to another page, model or format")
        if payload_bytes != len(found) - HEADER_BYTES:
            raise WrongContent(f"an object has {len(found) - HEADER_BYTES} bytes after its header, not {payload_bytes}")
        return header

    def _open(self, header: _Header, payload: np.ndarray, into: np.ndarray) -> None:
        if self._seal is not None:
            opened = np.empty(payload.nbytes, np.uint8) if header.packing else into
            self._seal.open(payload, header.nonce, header.tag, header.sealed_part(), opened)
            payload = opened
        if header.packing:
            assert self._packing is not None
            self._packing.unpack(payload, into)
