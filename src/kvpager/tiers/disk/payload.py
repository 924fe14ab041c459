"""Between a page and the bytes of its slot: checksums, and where asked for packing and a seal. Knows no files."""

from threading import local
from typing import TYPE_CHECKING

import numpy as np

from kvpager.checksum import checksum
from kvpager.errors import WrongContent
from kvpager.memory.arena import HostArena
from kvpager.tiers.disk.format import PACKED, SEALED, finish, named_part

if TYPE_CHECKING:
    from kvpager.tiers.sealing import Packing, Seal


class PayloadCodec:
    """``encoding``: its name, kept in the superblock of each slab."""

    def __init__(self, page_bytes: int, seal: "Seal | None", packing: "Packing | None") -> None:
        self._page_bytes = page_bytes
        self._seal = seal
        self._packing = packing
        self.is_plain = seal is None and packing is None
        self.is_packed = packing is not None  # payloads may be shorter than a page
        self.encoding = "+".join(part.name for part in (packing, seal) if part is not None) or "plain"

    def encode(self, page: np.ndarray, page_crc: int, header: np.ndarray) -> np.ndarray:
        """The payload (the page itself where it is plain); completes ``header``, HEADER [1]."""
        payload, flags = page, 0
        packed = None if self._packing is None else self._packing.pack(page)
        if packed is not None:
            payload, flags = np.frombuffer(packed, np.uint8), PACKED
        header["payload_bytes"] = payload.nbytes
        header["flags"] = flags | (SEALED if self._seal else 0)
        if self._seal is None:
            header["page_crc"] = page_crc  # of a sealed page it would tell what the seal hides
        else:
            sealed = self._seal.seal(payload, named_part(header))
            payload = sealed.payload
            header["nonce"][0, : len(sealed.nonce)] = list(sealed.nonce)
            header["tag"][0, : len(sealed.tag)] = list(sealed.tag)
        header["payload_crc"] = page_crc if payload is page else checksum(payload)
        finish(header)
        return payload

    def decode(self, header: np.ndarray, payload: np.ndarray, into: np.ndarray) -> int:
        """Fills ``into`` and returns the page's checksum. ``header``: HEADER [1], whole. Raises WrongContent.

        REQUIRES: ``payload`` has the header's length. It may be ``into``.
        """
        found = checksum(payload)
        if found != header["payload_crc"][0]:
            raise WrongContent("payload: a page on disk is not what was stored")
        flags = int(header["flags"][0])
        if flags & SEALED != (SEALED if self._seal else 0) or (flags & PACKED and self._packing is None):
            raise WrongContent("encoding: a page on disk is stored in another way than its slab says")
        if not flags & PACKED and payload.nbytes != self._page_bytes:
            raise WrongContent("length: a page on disk has another length")
        if self._seal is not None:
            opened = scratch("opened", 1, payload.nbytes)[0, : payload.nbytes] if flags & PACKED else into
            nonce, tag = header["nonce"].tobytes(), header["tag"].tobytes()
            nonce, tag = nonce[: self._seal.nonce_bytes], tag[: self._seal.tag_bytes]
            self._seal.open(payload, nonce, tag, named_part(header), opened)
            payload = opened
        if flags & PACKED:
            assert self._packing is not None
            self._packing.unpack(payload, into)
        elif payload is not into:
            into[:] = payload
        if self.is_plain:
            return found
        page_crc = checksum(into)
        if self._seal is None and page_crc != header["page_crc"][0]:
            raise WrongContent("page: a page on disk is not what was stored")
        return page_crc


_thread = local()


def scratch(use: str, count: int, size: int) -> np.ndarray:
    """uint8 [count, size], aligned if size is; memory of this thread, the same for the same ``use``."""
    arena = getattr(_thread, use, None)
    if arena is None or arena.num_blocks * arena.block_stride < count * size:
        arena = HostArena(count, size)
        setattr(_thread, use, arena)
    return arena.blocks.reshape(-1)[: count * size].reshape(count, size)
