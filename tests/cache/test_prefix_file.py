"""A prefix as a file: what is exported is found where it is imported, and a wrong file changes nothing."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from kvpager import ConfigError, HostTier, KVLayout, LayerSpec, OutOfBlocks, PagedCache
from kvpager.cache import arriving
from kvpager.cache.prefix_file import export_prefix, import_prefix
from kvpager.checksum import checksum
from kvpager.errors import WrongContent
from kvpager.prefix.hashing import Media, Scope
from kvpager.types import TierKind
from tests.cache.caches import LAYOUT, MIXED, WINDOWED, opened, published_blocks
from tests.stamp import Stamp, T, prefill

SHAPES = KVLayout.mixed([LayerSpec(1, 4), LayerSpec(2, 6), LayerSpec(1, 4, window=6)], page_size=4)
QUANTIZED = KVLayout(layers=2, kv_heads=2, head_dim=5, dtype="int8", page_size=3)
PROMPT = T(1, 22)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prefix.kv"


def exported(path: Path, layout: KVLayout = LAYOUT, tokens: list[int] = PROMPT, **options: object) -> int:
    """A file made by a cache that has computed ``tokens``."""
    with opened(layout, num_blocks=32, **options) as stamp:
        prefill(stamp, tokens).free()
        return export_prefix(stamp.cache, tokens, path)


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWED, MIXED, SHAPES], ids=["full", "window", "mixed", "shapes"])
@pytest.mark.parametrize("prompt", [PROMPT, T(1, 24), T(1, 5)], ids=["begun-page", "whole-pages", "one-page"])
def test_what_was_exported_is_found(layout: KVLayout, prompt: list[int], path: Path) -> None:
    whole = len(prompt) // layout.page_size * layout.page_size
    assert exported(path, layout, prompt) == whole
    with opened(layout, num_blocks=32) as stamp:
        assert import_prefix(stamp.cache, path) == whole
        stamp.cache.check()
        for tokens in (prompt, [*prompt[:whole], 99, 98]):
            seq = stamp.cache.sequence(tokens)
            expected = min(whole, (len(tokens) - 1) // layout.page_size * layout.page_size)
            assert expected <= seq.prefix_tokens < len(tokens)
            stamp.verify(seq)
            seq.free()


def test_quantized_pages_travel_with_their_scales(path: Path) -> None:
    rows = torch.randn(2, 2, 10, 2, 5, generator=torch.Generator().manual_seed(0))
    with opened(QUANTIZED) as stamp:
        seq = stamp.cache.sequence(T(1, 10))
        seq.write(0, *rows)
        held = seq.read(0, 9)
        assert export_prefix(stamp.cache, T(1, 10), path) == 9
    with opened(QUANTIZED) as stamp:
        assert import_prefix(stamp.cache, path) == 9
        seq = stamp.cache.sequence(T(1, 10))
        assert seq.prefix_tokens == 9
        assert all(torch.equal(one, other) for one, other in zip(seq.read(0, 9), held, strict=True))


def test_what_the_cache_has_already_is_kept_and_the_rest_comes(path: Path) -> None:
    exported(path)
    with opened() as stamp:
        prefill(stamp, T(1, 9)).free()
        before = published_blocks(stamp.cache)
        assert import_prefix(stamp.cache, path) == 20
        assert before.items() <= published_blocks(stamp.cache).items()
        assert len(published_blocks(stamp.cache)) == 5
        assert import_prefix(stamp.cache, path) == 20  # again: nothing to do
        assert len(published_blocks(stamp.cache)) == 5
        stamp.verify(stamp.cache.sequence(PROMPT))


def test_an_exported_file_is_the_owners_alone_and_nothing_is_left_behind(path: Path) -> None:
    umask = os.umask(0)
    try:
        exported(path)
        exported(path)  # replaces it
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_file_holds_nothing_of_other_prompts(path: Path) -> None:
    """Blocks of the smaller group end before the block does; what lies there may be anything."""
    with opened(SHAPES, num_blocks=32) as stamp:
        prefill(stamp, PROMPT).free()
        export_prefix(stamp.cache, PROMPT, path)
        before = path.read_bytes()
        smaller = min(range(SHAPES.num_groups), key=lambda group: SHAPES._group_bytes(SHAPES.groups[group], 4))
        end = SHAPES._group_bytes(SHAPES.groups[smaller], 4)
        assert end < SHAPES.block_stride
        for block in stamp.cache.index.all_blocks().tolist():
            if stamp.cache.index.group_of_block(block) == smaller:
                stamp.cache.arena.blocks[block, end:] = 0x77  # type: ignore[attr-defined]
        export_prefix(stamp.cache, PROMPT, path)
        assert path.read_bytes() == before


def test_pages_that_are_not_there_can_not_be_exported(path: Path) -> None:
    with opened() as stamp:
        prefill(stamp, PROMPT).free()
        for tokens, scope in ((T(50, 70), Scope()), (PROMPT, Scope(salt="other")), (T(1, 3), Scope())):
            with pytest.raises(ConfigError, match="no whole page"):
                export_prefix(stamp.cache, tokens, path, scope)
        assert not path.exists()
        with pytest.raises(ConfigError, match="can't write"):
            export_prefix(stamp.cache, PROMPT, path / "absent")
        assert export_prefix(stamp.cache, [*T(1, 8), 77, 78, 79, 80], path) == 8


# ---------------------------------------------------------------------------------------------------------- wrong files


def refuses(stamp: Stamp, path: Path, match: str, scope: Scope | None = None) -> None:
    """The import raises and leaves everything as it was."""
    cache = stamp.cache
    before = published_blocks(cache), cache.pool.counts(), cache.index.num_nodes, cache.index.num_scopes
    with pytest.raises(WrongContent, match=match):
        import_prefix(cache, path, scope or Scope())
    assert (published_blocks(cache), cache.pool.counts(), cache.index.num_nodes, cache.index.num_scopes) == before
    cache.check()


def test_a_flipped_bit_anywhere_is_seen(path: Path) -> None:
    exported(path)
    content = path.read_bytes()
    with opened() as stamp:
        prefill(stamp, T(1, 9)).free()
        for bit in range(0, 8 * len(content), 97):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            refuses(stamp, path, "prefix file")
        path.write_bytes(content)
        assert import_prefix(stamp.cache, path) == 20


def test_a_file_of_another_length_is_seen(path: Path) -> None:
    exported(path)
    content = path.read_bytes()
    with opened() as stamp:
        for size in [*range(0, 200, 7), *range(200, len(content), 131), len(content) - 1]:
            path.write_bytes(content[:size])
            refuses(stamp, path, "prefix file")
        for junk in (b"\0", content):
            path.write_bytes(content + junk)
            refuses(stamp, path, "does not end where it should")
        path.write_bytes(content)
        assert import_prefix(stamp.cache, path) == 20


def test_lengths_are_not_believed(path: Path) -> None:
    """Numbers that fit their checksum, made by someone else: no memory is taken for them."""
    exported(path)
    content = path.read_bytes()
    head = 4 * 20 + 96
    with opened() as stamp:
        for at, number in ((12, 2**31), (16, 2**62), (24, 2**62), (24, 4), (16, 0), (12, 0)):
            width = "<I" if at == 12 else "<Q"
            changed = bytearray(content)
            struct.pack_into(width, changed, at, number)
            struct.pack_into("<Q", changed, head, checksum(np.frombuffer(bytes(changed[:head]), np.uint8)))
            path.write_bytes(changed)
            refuses(stamp, path, "prefix file")
        for at, number in ((0, 5), (4, 1), (8, 2**62)):
            start = head + 8
            changed = bytearray(content)
            struct.pack_into("<Q" if at == 8 else "<I", changed, start + at, number)
            crc = checksum(np.frombuffer(bytes(changed[start : start + 24]), np.uint8))
            struct.pack_into("<Q", changed, start + 24, crc)
            path.write_bytes(changed)
            refuses(stamp, path, "none of this layout")
        path.write_bytes(content)
        assert import_prefix(stamp.cache, path) == 20


@pytest.mark.parametrize(
    ("layout", "fingerprint"),
    [
        (KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="float16", page_size=4), b"weights"),
        (KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="bfloat16", page_size=2), b"weights"),
        (KVLayout(layers=2, kv_heads=4, head_dim=2, dtype="bfloat16", page_size=4), b"weights"),
        (WINDOWED, b"weights"),
        (LAYOUT, b"other weights"),
    ],
    ids=["dtype", "page-size", "heads", "window", "weights"],
)
def test_a_file_of_another_model_is_refused(layout: KVLayout, fingerprint: bytes, path: Path) -> None:
    exported(path, fingerprint=b"weights")
    with opened(layout, fingerprint=fingerprint) as stamp:
        refuses(stamp, path, "another model or KV layout")
    with opened(LAYOUT, fingerprint=b"weights") as stamp:
        assert import_prefix(stamp.cache, path) == 20


def test_the_salt_may_be_another_but_adapter_and_media_may_not(path: Path) -> None:
    media = (Media(3, bytes(32)),)
    made = Scope(salt="one", adapter="poet", adapter_version="2", media=media)
    with opened() as stamp:
        prefill(stamp, PROMPT, scope=made).free()
        export_prefix(stamp.cache, PROMPT, path, made)
    with opened() as stamp:
        for wrong in (
            Scope(),
            Scope(salt="one", media=media),
            Scope(adapter="poet", adapter_version="1", media=media),
            Scope(adapter="poet", adapter_version="2"),
            Scope(adapter="poet", adapter_version="2", media=(Media(4, bytes(32)),)),
        ):
            refuses(stamp, path, "another scope", wrong)
        scope = Scope(salt="two", adapter="poet", adapter_version="2", media=media)
        assert import_prefix(stamp.cache, path, scope) == 20
        assert stamp.cache.sequence(PROMPT, scope=made).prefix_tokens == 0
        stamp.verify(stamp.cache.sequence(PROMPT, scope=scope))
        assert stamp.cache.sequence(PROMPT, scope=scope).prefix_tokens >= 20


def test_what_is_no_prefix_file_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps(list(range(100))))
    os.mkfifo(tmp_path / "pipe")
    exported(path)
    (tmp_path / "link").symlink_to(path)
    with opened() as stamp:
        refuses(stamp, tmp_path / "pickle", "not a prefix file")
        for name, words in (
            ("pipe", "is not a file"),
            ("absent", "can't read"),
            ("link", "can't read"),
            (".", "can't read"),
        ):
            with pytest.raises(ConfigError, match=words):
                import_prefix(stamp.cache, tmp_path / name)


def test_a_file_that_changes_while_it_is_read_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(path)
    content = path.read_bytes()
    taken = arriving.take

    def take(cache: PagedCache, count: int) -> object:
        changed = bytearray(content)
        changed[-1] ^= 1
        path.write_bytes(changed)
        return taken(cache, count)

    with opened() as stamp:
        monkeypatch.setattr(arriving, "take", take)
        refuses(stamp, path, "is not what was written")
        monkeypatch.undo()
        path.write_bytes(content)
        assert import_prefix(stamp.cache, path) == 20


def test_a_pool_that_is_too_small_says_so_and_loses_nothing(path: Path) -> None:
    exported(path)
    with opened(num_blocks=8) as stamp:
        running = prefill(stamp, T(50, 66))
        with pytest.raises(OutOfBlocks):
            import_prefix(stamp.cache, path)
        stamp.verify(running)
        running.free()
        assert import_prefix(stamp.cache, path) == 20


def test_a_cache_that_shares_nothing_can_not_import(path: Path) -> None:
    exported(path)
    with opened(prefix_cache=False) as stamp, pytest.raises(ConfigError, match="prefix_cache=True"):
        import_prefix(stamp.cache, path)


# ---------------------------------------------------------------------------------------------------------- with a tier


def test_pages_that_only_a_tier_has_are_exported_too(path: Path) -> None:
    with opened(num_blocks=8, tiers=[HostTier(pages=32)]) as stamp:
        prefill(stamp, PROMPT).free()
        prefill(stamp, T(50, 79)).free()  # takes all blocks
        assert stamp.cache.lookup(PROMPT).num_tokens < 20
        assert export_prefix(stamp.cache, PROMPT, path) == 20
    with opened() as stamp:
        assert import_prefix(stamp.cache, path) == 20
        stamp.verify(stamp.cache.sequence(PROMPT))


def test_imported_pages_are_written_down_like_others(path: Path) -> None:
    exported(path)
    with opened(num_blocks=8, tiers=[HostTier(pages=32)]) as stamp:
        assert import_prefix(stamp.cache, path) == 20
        prefill(stamp, T(50, 79)).free()
        assert stamp.cache.lookup(PROMPT).num_tokens < 20
        seq = stamp.cache.sequence(PROMPT)
        assert seq.prefix_tokens == 20
        assert seq.prefix_by_tier[TierKind.HOST] > 0
        stamp.verify(seq)
