"""Seals and packings: what was sealed opens again, and nothing else does."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvpager.errors import ConfigError, MissingExtra, WrongContent
from kvpager.tiers.sealing import (
    MAX_NONCE_BYTES,
    MAX_TAG_BYTES,
    AesGcm,
    Key,
    KeyedMac,
    Packing,
    Seal,
    Sealed,
    Zstd,
    read_key,
)

KEY, OTHER_KEY = Key(bytes(range(32))), Key(bytes(range(1, 33)))
HEADER = b"the page's key, layout and length"


def make_aes_gcm(key: Key) -> Seal:
    pytest.importorskip("cryptography", reason="the extra 'encryption' is not installed")
    return AesGcm(key)


@pytest.fixture(params=[KeyedMac, make_aes_gcm], ids=["mac", "aes"])
def make(request: pytest.FixtureRequest) -> Callable[[Key], Seal]:
    return request.param


@pytest.fixture
def zstd() -> Packing:
    pytest.importorskip("zstandard", reason="the extra 'zstd' is not installed")
    return Zstd()


def page_of(size: int = 5000) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 20, size, np.uint8)


def opened(seal: Seal, sealed: Sealed, header: bytes = HEADER, size: int = 5000) -> np.ndarray:
    into = np.full(size, 0xA5, np.uint8)
    seal.open(sealed.payload, sealed.nonce, sealed.tag, header, into)
    return into


def flipped(content: bytes | np.ndarray, bit: int) -> bytes:
    changed = bytearray(bytes(content))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# ---------------------------------------------------------------------------------------------------------------- seals


@pytest.mark.parametrize("size", [1, 15, 16, 17, 5000])
def test_what_was_sealed_opens(make: Callable[[Key], Seal], size: int) -> None:
    seal, page = make(KEY), page_of(size)
    sealed = seal.seal(page, HEADER)
    assert len(sealed.payload) == size
    assert (len(sealed.nonce), len(sealed.tag)) == (seal.nonce_bytes, seal.tag_bytes)
    assert seal.nonce_bytes <= MAX_NONCE_BYTES
    assert seal.tag_bytes <= MAX_TAG_BYTES
    assert np.array_equal(opened(make(KEY), sealed, size=size), page)
    own = np.array(sealed.payload)
    seal.open(memoryview(own), sealed.nonce, sealed.tag, HEADER, own)  # in place
    assert np.array_equal(own, page)


@pytest.mark.parametrize("part", ["payload", "nonce", "tag", "header"])
def test_one_flipped_bit_anywhere_breaks_the_seal(make: Callable[[Key], Seal], part: str) -> None:
    seal, page = make(KEY), page_of()
    sealed = seal.seal(page, HEADER)
    parts = {"payload": sealed.payload.tobytes(), "nonce": sealed.nonce, "tag": sealed.tag, "header": HEADER}
    bits = 8 * len(parts[part])
    for bit in range(0, bits, 1 + bits // 300):
        changed = parts | {part: flipped(parts[part], bit)}
        into = np.zeros_like(page)
        with pytest.raises(WrongContent, match="seal of a page is broken"):
            seal.open(memoryview(changed["payload"]), changed["nonce"], changed["tag"], changed["header"], into)
    assert np.array_equal(opened(seal, sealed), page)  # the control


def test_another_key_breaks_the_seal(make: Callable[[Key], Seal]) -> None:
    sealed = make(KEY).seal(page_of(), HEADER)
    with pytest.raises(WrongContent):
        opened(make(OTHER_KEY), sealed)
    assert np.array_equal(opened(make(KEY), sealed), page_of())


@pytest.mark.parametrize("part", ["payload", "nonce", "tag"])
@pytest.mark.parametrize("change", [lambda part: part[:0], lambda part: part[:-1], lambda part: part + b"\0"])
def test_other_lengths_break_the_seal(make: Callable[[Key], Seal], part: str, change: Callable[[bytes], bytes]) -> None:
    seal = make(KEY)
    sealed = seal.seal(page_of(), HEADER)
    parts = {"payload": sealed.payload.tobytes(), "nonce": sealed.nonce, "tag": sealed.tag}
    changed = parts | {part: change(parts[part])}
    if changed == parts:
        return  # nothing to cut
    with pytest.raises(WrongContent):
        seal.open(memoryview(changed["payload"]), changed["nonce"], changed["tag"], HEADER, np.zeros(5000, np.uint8))


def test_no_byte_moves_between_header_and_page(make: Callable[[Key], Seal]) -> None:
    page = np.frombuffer(b"page", np.uint8)
    sealed = make(KEY).seal(page, b"head")
    with pytest.raises(WrongContent):
        opened(make(KEY), Sealed(sealed.payload[1:], sealed.nonce, sealed.tag), b"headp", size=3)
    assert bytes(opened(make(KEY), sealed, b"head", size=4)) == b"page"


def test_encryption_hides_the_page_and_repeats_nothing() -> None:
    seal, page = make_aes_gcm(KEY), np.zeros(4096, np.uint8)
    first, second = seal.seal(page, HEADER), seal.seal(page, HEADER)
    assert first.nonce != second.nonce
    for sealed in (first, second):
        assert len(np.unique(sealed.payload)) > 200
    assert not np.array_equal(first.payload, second.payload)


def test_a_page_that_was_not_proven_is_not_shown() -> None:
    seal, page, into = make_aes_gcm(KEY), page_of(), np.ones(5000, np.uint8)
    sealed = seal.seal(page, HEADER)
    with pytest.raises(WrongContent):
        seal.open(sealed.payload, sealed.nonce, sealed.tag, b"another page", into)
    assert not into.any()


def test_aes_gcm_is_the_published_one() -> None:
    """Test case 14 of McGrew and Viega, "The Galois/Counter Mode of Operation": key, nonce and page all zeros."""
    pytest.importorskip("cryptography", reason="the extra 'encryption' is not installed")
    sealed = AesGcm(Key(bytes(32)), random=bytes).seal(np.zeros(16, np.uint8), b"")
    assert sealed.payload.tobytes().hex() == "cea7403d4d606b6e074ec5d3baf39d18"
    assert sealed.tag.hex() == "d0d1c8a799996bf0265b98b5d48ab919"


# ----------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("content", [KEY.secret, KEY.secret.hex().encode(), KEY.secret.hex().upper().encode() + b"\n"])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_file_is_read(tmp_path: Path, content: bytes, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    assert read_key(path).secret == KEY.secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601, 0o644])
def test_a_key_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY.secret)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    assert read_key(path).secret == KEY.secret


@pytest.mark.parametrize(
    "content",
    [b"", bytes(31), bytes(33), b"0" * 32, b"0" * 63, b"0" * 65, b"0" * 64 + b"\n\n\n", b"x" * 64, b"0x" + b"1" * 62],
    ids=["empty", "short", "long", "half-a-key", "63", "65", "lines", "no-digits", "prefix"],
)
def test_other_key_files_are_refused_without_showing_them(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds neither 32 bytes nor 64") as raised:
        read_key(path)
    assert not content or content.decode(errors="replace") not in str(raised.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (("pipe", "is not a file"), (".", "is not a file"), ("absent", "No such file")):
        with pytest.raises(ConfigError, match=words):
            read_key(tmp_path / name)


def test_a_key_does_not_show() -> None:
    assert repr(KEY) == str(KEY) == "Key()"
    with pytest.raises(ConfigError, match="32 bytes, not 31"):
        Key(bytes(31))


# ------------------------------------------------------------------------------------------------------------- packings


def test_a_packed_page_unpacks(zstd: Packing) -> None:
    for size in (100, 5000, 300_000):
        page, into = page_of(size), np.empty(size, np.uint8)
        packed = zstd.pack(page)
        assert packed is not None
        assert len(packed) < size
        zstd.unpack(memoryview(packed), into)
        assert np.array_equal(into, page)


@pytest.mark.parametrize("item_bytes", [2, 4])
def test_bytes_of_equal_rank_pack_better(zstd: Packing, item_bytes: int) -> None:
    page = np.random.default_rng(0).standard_normal(4096).astype(np.float32).view(np.uint8)
    if item_bytes == 2:
        page = page.reshape(-1, 2)[1::2].reshape(-1).copy()  # the upper halves
    planes, into = Zstd(item_bytes=item_bytes), np.empty_like(page)
    packed, plain = planes.pack(page), zstd.pack(page)
    assert packed is not None
    assert plain is None or len(packed) < len(plain)
    planes.unpack(memoryview(packed), into)
    assert np.array_equal(into, page)
    assert len({Zstd(item_bytes=count).name for count in (1, 2, 4)}) == 3


def test_what_would_not_be_smaller_is_not_packed(zstd: Packing) -> None:
    assert zstd.pack(np.random.default_rng(0).integers(0, 256, 5000, np.uint8)) is None


def test_damaged_frames_are_wrong_content(zstd: Packing) -> None:
    page = page_of()
    packed = zstd.pack(page)
    assert packed is not None
    skipped = b"\x50\x2a\x4d\x18" + (5000).to_bytes(4, "little") + bytes(5000)
    for wrong in (b"", b"no frame", packed[:-1], packed[:20], packed + b"\0", packed + packed, skipped):
        with pytest.raises(WrongContent):
            zstd.unpack(memoryview(wrong), np.empty(5000, np.uint8))
    for bit in range(0, 8 * len(packed), 1 + len(packed) // 50):  # some unpack, to 5000 other bytes
        into = np.full(5000, 0xA5, np.uint8)
        try:
            zstd.unpack(memoryview(flipped(packed, bit)), into)
        except WrongContent:
            continue
        assert not np.array_equal(into, page) or bit < 8 * 6
    into = np.empty(5000, np.uint8)
    zstd.unpack(memoryview(packed), into)
    assert np.array_equal(into, page)


def test_a_bomb_is_refused_before_memory_is_taken(zstd: Packing) -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(bomb) < 10_000
    lying = bytearray(bomb)
    at = lying.index((64 << 20).to_bytes(4, "little"))
    lying[at : at + 4] = (5000).to_bytes(4, "little")
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 50).to_bytes(8, "little") + b"\x01\0\0"
    for wrong in (bomb, bytes(lying), stream, huge):
        with pytest.raises(WrongContent):
            zstd.unpack(memoryview(wrong), np.empty(5000, np.uint8))


def test_a_level_that_is_none_is_refused(zstd: Packing) -> None:
    with pytest.raises(ConfigError, match="levels"):
        Zstd(level=23)
    assert Zstd(level=-5).pack(np.zeros(5000, np.uint8)) is not None


@pytest.mark.parametrize(
    ("package", "extra", "make"), [("cryptography", "encryption", lambda: AesGcm(KEY)), ("zstandard", "zstd", Zstd)]
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, make: Callable[[], object]
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"kvpager\[{extra}\]"):
        make()
