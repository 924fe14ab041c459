"""Content keys: the same in every process, different wherever anything differs."""

import hashlib
import itertools
import json
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager import ConfigError, KVLayout, LayerSpec, Media, Scope
from kvpager.prefix.hashing import FORMAT_VERSION, digest_fields, page_key, root_key

GOLDEN = Path(__file__).parents[1] / "golden" / "content_keys.json"
DIGEST = hashlib.sha256(b"x").digest()


def keys_of_chain(root: bytes, tokens: list[int], page_size: int, scope: Scope) -> list[str]:
    key, keys = root, []
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = array("i", tokens[start : start + page_size]).tobytes()
        key = page_key(key, page, scope.media_bytes(start, start + page_size))
        keys.append(key.hex())
    return keys


def golden_cases() -> dict[str, dict[str, object]]:
    """Everything a key depends on, one case each. The file holds what they were when format 1 was fixed."""
    small = KVLayout(2, 2, 8, dtype="float32", page_size=4)
    mixed = KVLayout.mixed([LayerSpec(2, 8), LayerSpec(2, 8, window=8)], dtype="bfloat16", page_size=4)
    media = Scope(media=(Media(0, DIGEST), Media(5, hashlib.sha256(b"y").digest())))
    cases = {
        "plain": (small, b"", Scope()),
        "fingerprint": (small, b"weights", Scope()),
        "salt": (small, b"", Scope(salt="tenant ä")),
        "adapter": (small, b"", Scope(adapter="a")),
        "adapter version": (small, b"", Scope(adapter="a", adapter_version="2")),
        "media": (small, b"", media),
        "mixed bf16 layout": (mixed, b"", Scope()),
    }
    found: dict[str, dict[str, object]] = {}
    for name, (layout, fingerprint, scope) in cases.items():
        root = root_key(fingerprint, layout.describe(), scope)
        found[name] = {"root": root.hex(), "pages": keys_of_chain(root, [*range(1, 8), 2**31 - 1, 9], 4, scope)}
    return found


def test_keys_are_the_golden_ones() -> None:
    """If this fails, every stored page loses its name: raise FORMAT_VERSION and write the file anew, on purpose."""
    golden = json.loads(GOLDEN.read_text())
    assert golden["format"] == FORMAT_VERSION
    assert golden["keys"] == golden_cases()


def test_a_page_key_is_the_sha256_that_the_format_says() -> None:
    """The format, spelled out by hand: 8 bytes of length before each field."""
    parent, tokens = bytes(range(32)), array("i", [1, 2, 3]).tobytes()
    expected = hashlib.sha256()
    for field in (b"kvpager.page", parent, tokens, b""):
        expected.update(len(field).to_bytes(8, "little") + field)
    assert page_key(parent, tokens, b"") == expected.digest()


def test_keys_do_not_depend_on_the_process() -> None:
    code = (
        "from kvpager.prefix.hashing import *; "
        "print(page_key(root_key(b'w', 'layout', Scope(salt='s', adapter='a')), b'\\1\\0\\0\\0', b'').hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    here = page_key(root_key(b"w", "layout", Scope(salt="s", adapter="a")), b"\1\0\0\0", b"").hex()
    assert outputs == {here + "\n"}


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_different_lists_of_fields_have_different_digests(one: list[bytes], other: list[bytes]) -> None:
    assert (digest_fields(one) == digest_fields(other)) == (one == other)


@given(st.lists(st.binary(max_size=4), min_size=2, max_size=4), st.integers(0, 12))
def test_moving_a_border_between_fields_changes_the_digest(fields: list[bytes], border: int) -> None:
    joined = b"".join(fields)
    border = min(border, len(joined))
    moved = [joined[:border], joined[border:]]
    assert (digest_fields(moved) == digest_fields(fields)) == (moved == fields)


ROOTS = {
    "plain": root_key(b"", "L", Scope()),
    "fingerprint": root_key(b"x", "L", Scope()),
    "layout": root_key(b"", "Lx", Scope()),
    "fingerprint and layout shifted": root_key(b"L", "", Scope()),
    "salt": root_key(b"", "L", Scope(salt="x")),
    "adapter": root_key(b"", "L", Scope(adapter="x")),
    "version": root_key(b"", "L", Scope(adapter="x", adapter_version="x")),
    "ab c": root_key(b"", "L", Scope(salt="ab", adapter="c")),
    "a bc": root_key(b"", "L", Scope(salt="a", adapter="bc")),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ROOTS, 2)))
def test_scopes_that_differ_in_any_field_have_different_roots(one: str, other: str) -> None:
    assert ROOTS[one] != ROOTS[other]


def test_an_empty_salt_is_the_same_as_none() -> None:
    assert root_key(b"", "L", Scope(salt="")) == ROOTS["plain"]


def test_keys_are_full_sha256() -> None:
    assert {len(key) for key in ROOTS.values()} == {32}
    assert len(page_key(ROOTS["plain"], b"", b"")) == 32


def test_a_lone_surrogate_in_a_salt_has_a_key_and_is_no_crash() -> None:
    assert root_key(b"", "L", Scope(salt="\ud800")) != root_key(b"", "L", Scope(salt="\ud801"))


def test_tokens_that_look_alike_when_joined_have_different_keys() -> None:
    one = page_key(ROOTS["plain"], array("i", [1, 23]).tobytes(), b"")
    other = page_key(ROOTS["plain"], array("i", [12, 3]).tobytes(), b"")
    assert one != other


# --------------------------------------------------------------------------------------------------------------- scope


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"salt": "x" * 1025}, "salt must be a string of at most 1024"),
        ({"salt": b"x"}, "salt must be a string"),
        ({"adapter": None}, "adapter must be a string"),
        ({"adapter_version": "2"}, "without an adapter"),
        ({"media": (Media(0, b"short"),)}, "32 bytes"),
        ({"media": (Media(0, "x" * 32),)}, "32 bytes"),
        ({"media": (Media(-1, DIGEST),)}, "before the first token"),
        ({"media": (Media(5, DIGEST), Media(4, DIGEST))}, "sorted by position"),
    ],
)
def test_a_wrong_scope_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Scope(**fields)
    Scope(salt="x" * 1024, adapter="a", adapter_version="2", media=(Media(4, DIGEST), Media(4, DIGEST)))


def test_media_belong_to_the_page_they_begin_in_with_their_place_in_it() -> None:
    scope = Scope(media=(Media(3, DIGEST), Media(4, DIGEST), Media(9, DIGEST)))
    assert scope.media_bytes(0, 4) == (3).to_bytes(8, "little") + DIGEST
    assert scope.media_bytes(4, 8) == (0).to_bytes(8, "little") + DIGEST
    assert scope.media_bytes(8, 12) == (1).to_bytes(8, "little") + DIGEST
    assert scope.media_bytes(12, 16) == b""


def test_the_position_of_media_inside_a_page_is_part_of_the_key() -> None:
    tokens = array("i", [1, 2, 3, 4]).tobytes()
    keys = {page_key(ROOTS["plain"], tokens, Scope(media=(Media(at, DIGEST),)).media_bytes(0, 4)) for at in range(4)}
    assert len(keys) == 4
