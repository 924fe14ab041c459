"""Open case O-11: different scopes never share."""

import hashlib

import pytest

from kvpager import KVLayout, Media, PagedCache, Scope, open_cache
from tests.stamp import Stamp, T, block_counts, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=16)
PROMPT = T(1, 48)
PLAIN = Scope()

# name -> the scope, and the revision of the model that computes under it
SCOPES: dict[str, tuple[Scope, bytes]] = {
    "plain": (PLAIN, b""),
    "salt x": (Scope(salt="x"), b""),
    "adapter x": (Scope(adapter="x"), b""),
    "content x": (Scope(media=(Media(0, hashlib.sha256(b"x").digest()),)), b""),
    "revision x": (PLAIN, b"x"),
    "salt ab, adapter c": (Scope(salt="ab", adapter="c"), b""),
    "salt a, adapter bc": (Scope(salt="a", adapter="bc"), b""),
    "adapter x, version x": (Scope(adapter="x", adapter_version="x"), b""),
}


def use_revision(cache: PagedCache, revision: bytes) -> None:
    """Names other weights without clearing the index, as ``set_fingerprint`` would: only the keys keep them apart."""
    cache._fingerprint = revision
    cache._root_keys.clear()


def found(cache: PagedCache, name: str) -> int:
    scope, revision = SCOPES[name]
    use_revision(cache, revision)
    return cache.lookup([*PROMPT, 49], scope).num_tokens


@pytest.mark.parametrize("inside", [True, False], ids=["inside pages", "whole pages"])
@pytest.mark.parametrize("warm", SCOPES)
def test_a_warm_scope_is_found_by_itself_and_by_no_other(warm: str, inside: bool) -> None:
    with open_cache(LAYOUT, num_blocks=64, match_inside_pages=inside) as cache:
        scope, revision = SCOPES[warm]
        use_revision(cache, revision)
        prefill(Stamp(cache), PROMPT, scope=scope).free()
        block_counts(cache)
        hits = {name: found(cache, name) for name in SCOPES}
        assert hits == {name: 48 if name == warm else 0 for name in SCOPES}


def test_all_scopes_warm_at_once_have_blocks_and_keys_of_their_own() -> None:
    with open_cache(LAYOUT, num_blocks=64) as cache:
        stamp = Stamp(cache)
        for scope, revision in SCOPES.values():
            use_revision(cache, revision)
            seq = prefill(stamp, PROMPT, scope=scope)
            assert seq.prefix_tokens == 0
            seq.free()
        assert block_counts(cache)["cached"] == 3 * len(SCOPES)
        assert {found(cache, name) for name in SCOPES} == {48}
        nodes = [cache.index.node_of_block(block) for block in cache.index.all_blocks().tolist()]
        assert len({cache.index.key(node) for node in nodes}) == 3 * len(SCOPES)


def test_an_empty_salt_is_the_same_as_none() -> None:
    with open_cache(LAYOUT, num_blocks=64) as cache:
        prefill(Stamp(cache), PROMPT, scope=Scope(salt="")).free()
        assert cache.lookup([*PROMPT, 49]).num_tokens == 48
