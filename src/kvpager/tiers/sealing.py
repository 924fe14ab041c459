"""What guards the bytes of a page below the device, and what makes them fewer. Knows pages and headers as bytes only.

A checksum finds accidents. A *seal* also finds intent: who does not have the key can't make, change or exchange a page
without being noticed, since the header (which names the page) is sealed together with the bytes.

    KeyedMac    the page can be read by everyone, but changed only with the key        BLAKE2b-256, keyed (RFC 7693)
    AesGcm      the page can neither be read nor changed without the key               AES-256-GCM (NIST SP 800-38D)

What seals do not hide: how many pages there are, how large they are, and when which of them is read. Nor do they find
an old page that is put back under the header it had.

A *packing* makes the payload smaller without loss. A page is packed first and sealed then; nothing is ever unpacked
whose seal was not checked. Calls come from worker threads, several at once.
"""

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any, Protocol

import numpy as np

from kvpager.config.private_file import read_private
from kvpager.errors import ConfigError, MissingExtra, WrongContent

KEY_BYTES = 32
MAX_NONCE_BYTES = 12  # for whoever keeps them in a header
MAX_TAG_BYTES = 32

Payload = memoryview | np.ndarray


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is stored: ``payload`` (uint8, as long as the page), in its header ``nonce`` and ``tag``; both public."""

    payload: np.ndarray
    nonce: bytes
    tag: bytes


class Seal(Protocol):
    """``nonce_bytes`` and ``tag_bytes``: the lengths of what a header has to keep, always the same."""

    name: str
    nonce_bytes: int
    tag_bytes: int

    @property
    def key_name(self) -> bytes:
        """32 bytes that tell its key from others."""
        ...

    def seal(self, page: np.ndarray, header: bytes) -> Sealed:
        """Seals ``page`` (uint8, contiguous) and ``header`` together. The payload may be the page's own memory."""
        ...

    def open(self, payload: Payload, nonce: bytes, tag: bytes, header: bytes, into: np.ndarray) -> None:
        """Fills ``into`` (uint8, contiguous, maybe the payload's own memory) with the page.

        Raises WrongContent unless all four are what ``seal`` gave and was given; ``into`` then holds nothing of use.
        """
        ...


class Packing(Protocol):
    """Pages made smaller without loss."""

    name: str

    def pack(self, page: np.ndarray) -> bytes | None:
        """The page in fewer bytes; None where it would not be smaller."""
        ...

    def unpack(self, payload: Payload, into: np.ndarray) -> None:
        """Fills ``into``. Raises WrongContent unless that is exactly the length of the page that was packed."""
        ...


# -- keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """32 secret bytes, which don't show when it is printed."""

    secret: bytes = field(repr=False)

    @property
    def name(self) -> bytes:
        """32 bytes that tell keys apart and say nothing of them."""
        return hashlib.blake2b(b"kvpager.key-name", key=self.secret, digest_size=32).digest()

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ConfigError(f"a key has {KEY_BYTES} bytes, not {len(self.secret)}")


def read_key(path: str | Path) -> Key:
    """The key in a file of 32 bytes, or of 64 hexadecimal digits, that only its owner may read.

    ``head -c 32 /dev/urandom > FILE`` makes one (after ``umask 077``). Raises ConfigError.
    """
    content = read_private(path, 2 * KEY_BYTES + 3)  # more is no key anyhow
    return Key(_parse_key(content, path))


def _parse_key(content: bytes, path: str | Path) -> bytes:
    if len(content) == KEY_BYTES and not _is_hex(content):  # 32 digits are half a key
        return content
    digits = content[: 2 * KEY_BYTES]
    if content[2 * KEY_BYTES :] in (b"", b"\n", b"\r\n") and len(digits) == 2 * KEY_BYTES and _is_hex(digits):
        return bytes.fromhex(digits.decode())
    raise ConfigError(f"the key file {path} holds neither {KEY_BYTES} bytes nor {2 * KEY_BYTES} hexadecimal digits")


def _is_hex(content: bytes) -> bool:
    return all(byte in b"0123456789abcdefABCDEF" for byte in content)


# -- seals ---------------------------------------------------------------------------------------------------------


class KeyedMac:
    """Pages as they are, with a keyed hash of header and page as the tag."""

    name = "blake2b-256"
    nonce_bytes = 0
    tag_bytes = 32

    def __init__(self, key: Key) -> None:
        self._key = key

    @property
    def key_name(self) -> bytes:
        return self._key.name

    def seal(self, page: np.ndarray, header: bytes) -> Sealed:
        return Sealed(page, b"", self._tag(page, header))

    def open(self, payload: Payload, nonce: bytes, tag: bytes, header: bytes, into: np.ndarray) -> None:
        page = _bytes_of(payload)
        if len(page) != into.nbytes or nonce or not hmac.compare_digest(self._tag(page, header), tag):
            raise _broken()
        into[:] = page

    def _tag(self, page: np.ndarray, header: bytes) -> bytes:
        state = hashlib.blake2b(digest_size=self.tag_bytes, key=self._key.secret, person=b"kvpager.page")
        state.update(len(header).to_bytes(8, "little"))  # nobody can move the border between header and page
        state.update(header)
        state.update(page.data)
        return state.digest()


class AesGcm:
    """Encrypted pages. Needs the package ``cryptography``.

    Nonces are random, so one key should seal no more than 2**32 pages (SP 800-38D, 8.3): 3 PB of pages of 720 KiB. Then
    give it a new key; what the old one sealed is lost with it. ``random`` makes nonces of so many bytes.
    """

    name = "aes-256-gcm"
    nonce_bytes = 12
    tag_bytes = 16

    def __init__(self, key: Key, random: Callable[[int], bytes] = os.urandom) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError as error:
            raise MissingExtra("cryptography", "encryption", "encryption of pages") from error
        self._key = key
        self._cipher: Callable[[Any], Any] = lambda mode: Cipher(algorithms.AES(key.secret), mode)
        self._mode = modes.GCM
        self._invalid_tag = InvalidTag
        self._random = random

    @property
    def key_name(self) -> bytes:
        return self._key.name

    def seal(self, page: np.ndarray, header: bytes) -> Sealed:
        nonce = self._random(self.nonce_bytes)
        payload = np.empty(page.nbytes, np.uint8)
        encryptor = self._cipher(self._mode(nonce)).encryptor()
        encryptor.authenticate_additional_data(header)
        encryptor.update_into(page, payload)
        encryptor.finalize()
        return Sealed(payload, nonce, encryptor.tag)

    def open(self, payload: Payload, nonce: bytes, tag: bytes, header: bytes, into: np.ndarray) -> None:
        encrypted = _bytes_of(payload)
        if (len(encrypted), len(nonce), len(tag)) != (into.nbytes, self.nonce_bytes, self.tag_bytes):
            raise _broken()
        decryptor = self._cipher(self._mode(nonce, tag)).decryptor()
        decryptor.authenticate_additional_data(header)
        decryptor.update_into(encrypted, into)
        try:
            decryptor.finalize()
        except self._invalid_tag:
            into[:] = 0  # nobody shall see what was not proven
            raise _broken() from None


def _bytes_of(payload: Payload) -> np.ndarray:
    return np.frombuffer(payload, np.uint8)


def _broken() -> WrongContent:
    """One message for all causes: it tells nobody which part to try next."""
    return WrongContent("the seal of a page is broken: other bytes, another header, or another key")


def choose_seal(key_file: str | Path | None, encrypt: bool) -> Seal | None:
    """What a user's settings ask for. Raises ConfigError for a key that can't be used, or that is missing."""
    if key_file is None:
        if encrypt:
            raise ConfigError("pages are encrypted with a key: give key_file too")
        return None
    key = read_key(key_file)
    return AesGcm(key) if encrypt else KeyedMac(key)


def sealed_identity(identity: bytes, seal: Seal | None) -> bytes:
    """The identity of pages under a seal. With another key they are another's: neither used nor called damaged."""
    return identity if seal is None else hashlib.sha256(identity + seal.name.encode() + seal.key_name).digest()


# -- packings ------------------------------------------------------------------------------------------------------


class Zstd:
    """Zstandard frames. Needs the package ``zstandard``. ``level``: 1 is fast; higher ones gain nothing on KV.

    ``item_bytes``: where elements have several bytes, those of equal rank are put side by side first. The high bytes
    of floats, with the exponents, are all that compresses: SmolLM2's KV in bfloat16 shrinks to 70 % instead of 79 %.
    """

    def __init__(self, level: int = 1, item_bytes: int = 1) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtra("zstandard", "zstd", "compression of pages") from error
        if not -100 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
            raise ConfigError(f"zstd has levels from -100 to {zstandard.MAX_COMPRESSION_LEVEL}, not {level}")
        self.name = "zstd" if item_bytes == 1 else f"zstd/{item_bytes}"
        self._zstandard = zstandard
        self._level = level
        self._item_bytes = item_bytes
        self._thread = local()

    def pack(self, page: np.ndarray) -> bytes | None:
        packed: bytes = self._tools[0].compress(self._planes(page))
        return packed if len(packed) < page.nbytes else None

    def unpack(self, payload: Payload, into: np.ndarray) -> None:
        payload = _bytes_of(payload).data
        try:
            length = self._zstandard.get_frame_parameters(payload).content_size
            if length != into.nbytes:  # before anything is made of it: the length may be any number
                raise WrongContent(f"a packed page says that it has {length} bytes, not {into.nbytes}")
            page = self._tools[1].decompress(payload, allow_extra_data=False)
        except self._zstandard.ZstdError as error:
            raise WrongContent(f"a packed page is damaged: {error}") from error
        if len(page) != into.nbytes:  # a frame may also hold what is to be skipped
            raise WrongContent(f"a packed page has {len(page)} bytes, not {into.nbytes}")
        planes = np.frombuffer(page, np.uint8).reshape(self._item_bytes, -1)
        for rank, plane in enumerate(planes):
            into[rank :: self._item_bytes] = plane

    def _planes(self, page: np.ndarray) -> np.ndarray:
        """All first bytes of the elements, all second ones, .. REQUIRES: whole elements."""
        assert page.nbytes % self._item_bytes == 0
        if self._item_bytes == 1:
            return page
        planes = np.empty((self._item_bytes, page.nbytes // self._item_bytes), np.uint8)
        for rank, plane in enumerate(planes):
            plane[:] = page[rank :: self._item_bytes]
        return planes.reshape(-1)

    @property
    def _tools(self) -> tuple[Any, Any]:
        """Compressor and decompressor of this thread: none may be used by two at once."""
        tools: tuple[Any, Any] | None = getattr(self._thread, "tools", None)
        if tools is None:
            make = self._zstandard
            tools = self._thread.tools = (make.ZstdCompressor(level=self._level), make.ZstdDecompressor())
        return tools
