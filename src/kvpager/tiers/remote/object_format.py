"""An object of the remote tier: a header of 192 bytes, and the payload. Knows bytes; no store and no books.

      0  magic            8   "kvpager" 0
      8  version          4   1
     12  header bytes     4   192
     16  key             32   the content key
     48  identity        32   digest of whatever else must be equal: layout, dtype, page size
     80  page bytes       8   as the cache keeps it
     88  payload bytes    8   as they follow
     96  checksum         8   CRC-64/NVME of the page's bytes
    104  packing          8   name of how the page was made smaller; zeros: it was not
    112  seal             8   name of how the payload was sealed; zeros: it was not
    120  nonce           24   of the seal, padded with zeros
    144  tag             32   of the seal, padded with zeros
    176  reserved        16   zeros

Integers are little-endian and unsigned. A header is right if it is, byte for byte, the one that would be written here
and now; only checksum, payload bytes, nonce and tag are taken from it, and the first two are then compared with the
payload. A reader that knows another version, or another identity, calls the object wrong and computes the page.
"""

import struct
from dataclasses import dataclass

from kvpager.errors import WrongContent
from kvpager.types import ContentKey

MAGIC = b"kvpager\0"
VERSION = 1
_HEADER = struct.Struct("<8sII32s32sQQQ8s8s24s32s16x")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 192


@dataclass(frozen=True, slots=True)
class Header:
    key: ContentKey
    identity: bytes
    page_bytes: int
    payload_bytes: int
    checksum: int
    packing: bytes = b""
    seal: bytes = b""
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
        """What the seal vouches for beside the payload: the header as it is before there are a nonce and a tag."""
        return Header(self.key, self.identity, self.page_bytes, 0, self.checksum, self.packing, self.seal).pack()


def read_header(found: bytes, key: ContentKey, identity: bytes, page_bytes: int, packing: bytes, seal: bytes) -> Header:
    """The header at the begin of ``found``. Raises WrongContent unless it is the one that belongs there."""
    if len(found) < HEADER_BYTES:
        raise WrongContent(f"an object of {len(found)} bytes is shorter than its header")
    fields = _HEADER.unpack_from(found)
    payload_bytes, checksum, nonce, tag = fields[6], fields[7], fields[10], fields[11]
    header = Header(key, identity, page_bytes, payload_bytes, checksum, packing, seal, nonce, tag)
    if not seal and (any(nonce) or any(tag)):
        raise WrongContent("an object that is not sealed has a seal")
    if header.pack() != found[:HEADER_BYTES]:
        raise WrongContent("an object's header belongs to another page, model or format")
    if payload_bytes != len(found) - HEADER_BYTES:
        raise WrongContent(f"an object has {len(found) - HEADER_BYTES} bytes after its header, not {payload_bytes}")
    return header
