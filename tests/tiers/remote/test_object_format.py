import pickle
import struct

import numpy as np
import pytest

from kvpager.checksum import checksum
from kvpager.errors import WrongContent
from kvpager.tiers.remote.object_format import HEADER_BYTES, ObjectFormat
from kvpager.tiers.sealing import AesGcm, Key, KeyedMac, Zstd
from tests.contracts.lower_tier import key

PAGE_BYTES = 512
IDENTITY = bytes(range(32))
PAGE = np.random.default_rng(5).integers(0, 256, PAGE_BYTES).astype(np.uint8)
EVEN = np.zeros(PAGE_BYTES, np.uint8)
KEY = Key(bytes(32))
FORMS = {
    "plain": ObjectFormat(PAGE_BYTES, IDENTITY),
    "packed": ObjectFormat(PAGE_BYTES, IDENTITY, Zstd()),
    "mac": ObjectFormat(PAGE_BYTES, IDENTITY, None, KeyedMac(KEY)),
    "encrypted": ObjectFormat(PAGE_BYTES, IDENTITY, None, AesGcm(KEY)),
    "packed and encrypted": ObjectFormat(PAGE_BYTES, IDENTITY, Zstd(), AesGcm(KEY)),
}


def opened(form: ObjectFormat, found: bytes, number: int = 1) -> np.ndarray:
    into = np.full(PAGE_BYTES, 7, np.uint8)
    assert form.unwrap(key(number), found, into) == checksum(into)
    return into


def is_refused(form: ObjectFormat, found: bytes, number: int = 1) -> bool:
    try:
        opened(form, found, number)
    except WrongContent:
        return True
    return False


def test_the_bytes_are_those_that_are_documented() -> None:
    found = FORMS["plain"].wrap(key(1), PAGE, None)
    header = struct.pack("<8sII", b"kvpager\0", 1, 192) + key(1) + IDENTITY
    header += struct.pack("<QQQ", PAGE_BYTES, PAGE_BYTES, checksum(PAGE)) + bytes(88)
    assert found == header + PAGE.tobytes()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("page", [PAGE, EVEN], ids=["random", "even"])
def test_every_form_comes_back(form: ObjectFormat, page: np.ndarray) -> None:
    found = form.wrap(key(1), page, checksum(page))
    assert (opened(form, found) == page).all()
    assert len(found) <= form.max_bytes


def test_packing_makes_it_smaller_and_encryption_hides_it() -> None:
    assert len(FORMS["packed"].wrap(key(1), EVEN, None)) < HEADER_BYTES + 100
    assert PAGE.tobytes() in FORMS["mac"].wrap(key(1), PAGE, None)
    assert PAGE.tobytes()[:16] not in FORMS["encrypted"].wrap(key(1), PAGE, None)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_bit_may_turn(form: ObjectFormat) -> None:
    found = form.wrap(key(1), EVEN if form is FORMS["packed"] else PAGE, None)
    for at in [*range(HEADER_BYTES), *range(HEADER_BYTES, len(found), 37)]:
        changed = bytearray(found)
        changed[at] ^= 1 << at % 8
        assert is_refused(form, bytes(changed)), f"byte {at}"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_byte_may_be_missing_or_too_many(form: ObjectFormat) -> None:
    found = form.wrap(key(1), PAGE, None)
    lengths = [0, 1, 8, 191, 192, 193, len(found) // 2, len(found) - 1]
    assert all(is_refused(form, found[:length]) for length in lengths)
    assert is_refused(form, found + b"\0")
    assert is_refused(form, found + found)
    assert not is_refused(form, found)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_another_key_identity_page_size_or_form_is_refused(form: ObjectFormat) -> None:
    found = form.wrap(key(1), EVEN, None)
    assert not is_refused(form, found)
    assert is_refused(form, found, number=2)
    others = [ObjectFormat(PAGE_BYTES, bytes(32)), ObjectFormat(PAGE_BYTES + 8, IDENTITY)]
    others += [each for name, each in FORMS.items() if each is not form and name in ("mac", "encrypted")]
    assert all(is_refused(other, found) for other in others)


def test_a_reader_that_packs_reads_what_was_not_packed_but_not_the_other_way_round() -> None:
    assert (opened(FORMS["packed"], FORMS["plain"].wrap(key(1), PAGE, None)) == PAGE).all()
    assert is_refused(FORMS["plain"], FORMS["packed"].wrap(key(1), EVEN, None))


def test_another_secret_does_not_open_it() -> None:
    for seal in (KeyedMac, AesGcm):
        found = ObjectFormat(PAGE_BYTES, IDENTITY, None, seal(Key(bytes(31) + b"x"))).wrap(key(1), PAGE, None)
        assert is_refused(ObjectFormat(PAGE_BYTES, IDENTITY, None, seal(KEY)), found)


def test_foreign_content_is_refused_and_not_run() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (pytest.fail, ("it was run",))

    assert is_refused(FORMS["plain"], pickle.dumps(Trap()) + bytes(HEADER_BYTES + PAGE_BYTES))
    assert is_refused(FORMS["plain"], bytes(HEADER_BYTES + PAGE_BYTES))


def test_a_page_that_changed_on_the_way_here_is_not_wrapped() -> None:
    with pytest.raises(WrongContent, match="not what left the device"):
        FORMS["plain"].wrap(key(1), PAGE, checksum(PAGE) ^ 1)
