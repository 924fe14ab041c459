"""A prefix as a file: the KV of a prompt's whole pages, to be carried to another process or machine.

    export_prefix    what the cache has of a prompt (on the device, or in a tier below it) goes into a new file
    import_prefix    what a file holds becomes cached pages, which ``cache.sequence(tokens)`` finds

The format is drawn in docs/prefix-file.md. A file holds token ids and KV, so it is as secret as the prompt; it is made
readable for its owner only. Its checksums find damage, not intent: import files only from those you trust with the
answers. Nothing in it is run or trusted for a size.

Both are called between steps, by the thread that owns the cache, and wait for the file system.
"""

import os
import secrets
import stat
import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kvpager.cache.arriving import attach, hold, let_arrive, let_go, resident_blocks, take_held
from kvpager.cache.paged_cache import ANY_SCOPE, PagedCache
from kvpager.cache.prefix_match import first_visible_page, page_labels
from kvpager.cache.sequence import token_array
from kvpager.checksum import checksum
from kvpager.errors import ConfigError, WrongContent
from kvpager.memory.layout import KVLayout
from kvpager.prefix.hashing import Scope, digest_fields, page_key, root_key
from kvpager.tiers.device_pages import DevicePages
from kvpager.types import ContentKey

FORMAT_VERSION = 1
_MAGIC = b"KVPREFIX"
_HEAD = struct.Struct("<8sIIQQ32s32s")  # magic, version, page_size, pages, blocks, identity, content
_BLOCK = struct.Struct("<IIQQ")  # page, group, bytes, CRC-64 of the bytes
_CRC = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of the file. ``offset``: where its bytes begin."""

    page: int
    group: int
    offset: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the head of a file says, once it is checked."""

    tokens: "array[int]"
    blocks: tuple[_Block, ...]


# -- out ------------------------------------------------------------------------------------------------------------


def export_prefix(cache: PagedCache, tokens: Iterable[int], path: str | Path, scope: Scope = ANY_SCOPE) -> int:
    """Writes the whole pages of ``tokens`` that ``cache`` has into the new file ``path``. Returns how many tokens.

    The file replaces one of that name when it is complete and durable, never before. Raises ConfigError where the
    cache has no whole page of it, or the file can't be written.
    """
    ids = token_array(tokens)
    if cache.lower is not None:
        cache.lower.bring_up(ids, scope, len(ids))
    match = cache._match(ids, scope, len(ids))
    num_pages = len(match.nodes)
    if not num_pages:
        raise ConfigError("the cache has no whole page of these tokens; compute them first, in the same scope")
    page_size = cache.layout.page_size
    ids = ids[: num_pages * page_size]
    found = [  # also what the same prompt needs, whose last token is always computed
        (page, group, block)
        for page, group in _needed(cache.layout, max(1, num_pages - 1), num_pages)
        if (block := cache.index.block(match.nodes[page], group)) is not None
    ]
    key = _content(cache, ids, scope)
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, page_size, num_pages, len(found), _identity(cache), key)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", opener=_open_own) as file:
            file.write(_summed(head + np.frombuffer(ids, np.int32).astype("<i4").tobytes()))
            for page, group, block in found:
                _write_block(cache, file, page, group, block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _make_durable(path.parent)
    except OSError as error:
        raise ConfigError(f"can't write the prefix file {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return len(ids)


def _write_block(cache: PagedCache, file: BinaryIO, page: int, group: int, block: int) -> None:
    bytes_of = np.empty(cache.layout.block_stride, np.uint8)
    device = _device_pages(cache)
    [result] = device.read([device.landing(block, ContentKey(b""))], [bytes_of])
    if not isinstance(result, int):
        raise result
    content = bytes_of[: _group_bytes(cache.layout, group)]  # behind it lies what is none of this prefix
    file.write(_summed(_BLOCK.pack(page, group, content.nbytes, checksum(content))))
    file.write(content.data)


def _make_durable(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# -- in -------------------------------------------------------------------------------------------------------------


def import_prefix(cache: PagedCache, path: str | Path, scope: Scope = ANY_SCOPE) -> int:
    """Makes the pages in ``path`` findable in ``scope``. Returns how many tokens the file holds.

    The scope's adapter and media must be those it was exported with; its salt may be another. The pages count as cached
    ones, so they may be dropped again like others. Raises WrongContent where the file is damaged or of another model,
    layout, or scope, ConfigError where it can't be read, OutOfBlocks where the pages don't fit; nothing was changed.
    """
    if not cache.has_prefix_cache:
        raise ConfigError("this cache shares nothing by content: open it with prefix_cache=True")
    try:
        with open(path, "rb", opener=_open_own) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"the prefix file {path} is not a file")
            contents = _read_contents(cache, file, scope)
            for block in contents.blocks:
                _read_block(file, block, np.empty(block.size, np.uint8))
            _publish(cache, file, contents, scope)
    except OSError as error:
        raise ConfigError(f"can't read the prefix file {path}: {error.strerror}") from error
    return len(contents.tokens)


def _publish(cache: PagedCache, file: BinaryIO, contents: _Contents, scope: Scope) -> None:
    page_size, ids = cache.layout.page_size, contents.tokens
    key = cache._root_key(scope)
    labels = page_labels(ids, scope, 0, len(ids) // page_size, page_size)
    root = cache.index.find_root(key)
    chain = [] if root is None else cache.index.match(root, labels)
    missing = {
        (block.page, block.group): block
        for block in contents.blocks
        if block.page >= len(chain) or cache.index.block(chain[block.page], block.group) is None
    }
    resident = resident_blocks(cache, key, labels, missing)
    fresh = resident[:0]
    hold(cache, resident)
    try:
        fresh = take_held(cache, len(missing))
        for block, target in zip(missing.values(), fresh.tolist(), strict=True):
            _fill(cache, file, block, target)  # checked again: the file may have been changed meanwhile
        taken = attach(cache, key, labels, dict(zip(missing, fresh.tolist(), strict=True)))
    finally:
        let_arrive(cache, fresh[::-1])
        let_go(cache, resident)
    if cache.lower is not None:
        cache.lower.published(list(taken.values()))


def _fill(cache: PagedCache, file: BinaryIO, block: _Block, target: int) -> None:
    content = np.zeros(cache.layout.block_stride, np.uint8)
    _read_block(file, block, content[: block.size])
    device = _device_pages(cache)
    slot = device.landing(target, ContentKey(b""))
    if slot.memory is not None:
        slot.memory[:] = content
        return
    [error] = device.write([slot], [content])
    if error is not None:
        raise error


def _read_contents(cache: PagedCache, file: BinaryIO, scope: Scope) -> _Contents:
    """The head, the tokens and the heads of all blocks, against the cache and the size of the file."""
    layout, size = cache.layout, os.fstat(file.fileno()).st_size
    head = _read(file, 0, _HEAD.size)
    magic, version, page_size, num_pages, num_blocks, identity, content = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise WrongContent("not a prefix file")
    if version != FORMAT_VERSION:
        raise WrongContent(f"the prefix file has format {version}; this version reads {FORMAT_VERSION}")
    num_bytes = _HEAD.size + 4 * page_size * num_pages
    if num_bytes + _CRC.size > size:
        raise _damaged("it ends too early")
    raw = _checked(_read(file, 0, num_bytes + _CRC.size))
    if identity != _identity(cache):
        raise WrongContent("the prefix file is of another model or KV layout than this cache")
    if page_size != layout.page_size:
        raise _damaged("it contradicts itself about the page size")
    tokens = array("i", np.frombuffer(raw, "<i4", offset=_HEAD.size).astype(np.int32).tobytes())
    if not num_pages or min(tokens) < 0 or content != _content(cache, tokens, scope):
        raise WrongContent("the prefix file is of another scope (adapter, media) than it is to be used in")
    blocks, at = [], num_bytes + _CRC.size
    for _ in range(num_blocks):
        page, group, length, crc = _BLOCK.unpack(_checked(_read(file, at, _BLOCK.size + _CRC.size)))
        if page >= num_pages or group >= layout.num_groups or length != _group_bytes(layout, group):
            raise _damaged("a block is none of this layout")
        at += _BLOCK.size + _CRC.size
        blocks.append(_Block(page, group, at, length, crc))
        at += length
        if at > size:
            raise _damaged("it ends too early")
    if at != size:
        raise _damaged("it does not end where it should")
    pages = {(block.page, block.group) for block in blocks}
    if len(pages) != num_blocks or not pages.issuperset(_needed(layout, num_pages, num_pages)):
        raise _damaged("its blocks are not those of its tokens")
    return _Contents(tokens, tuple(blocks))


def _needed(layout: KVLayout, depth: int, stop: int) -> Iterable[tuple[int, int]]:
    """The pages before ``stop``, of each group, that a query behind ``depth`` pages sees, and the last one of these."""
    for number, group in enumerate(layout.groups):
        first = min(first_visible_page(depth * layout.page_size, group.window, layout.page_size), depth - 1)
        for page in range(first, stop):
            yield page, number


def _read_block(file: BinaryIO, block: _Block, into: np.ndarray) -> None:
    file.seek(block.offset)
    if file.readinto(into.data) != block.size or checksum(into) != block.checksum:  # type: ignore[attr-defined]
        raise _damaged(f"page {block.page} is not what was written")


def _open_own(path: str, flags: int) -> int:
    """For the owner only, through no link, and without waiting for whoever is at the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    found = file.read(size)
    if len(found) != size:
        raise _damaged("it ends too early")
    return found


def _summed(content: bytes) -> bytes:
    return content + _CRC.pack(checksum(np.frombuffer(content, np.uint8)))


def _checked(content: bytes) -> bytes:
    """What ``_summed`` was given."""
    body = content[: -_CRC.size]
    if _summed(body) != content:
        raise _damaged("a head is not what was written")
    return body


def _damaged(what: str) -> WrongContent:
    return WrongContent(f"the prefix file is damaged: {what}")


# -- what both must agree on ----------------------------------------------------------------------------------------


def _identity(cache: PagedCache) -> bytes:
    """Names the model's weights and the layout, and nothing of any scope."""
    return digest_fields([b"kvpager.prefix-file", cache._fingerprint, cache.layout.describe().encode()])


def _content(cache: PagedCache, tokens: "array[int]", scope: Scope) -> bytes:
    """The content key of the last page in a scope without salt: names all tokens, media, and the adapter."""
    page_size = cache.layout.page_size
    unsalted = Scope(adapter=scope.adapter, adapter_version=scope.adapter_version, media=scope.media)
    key = root_key(cache._fingerprint, cache.layout.describe(), unsalted)
    for label in page_labels(tokens, unsalted, 0, len(tokens) // page_size, page_size):
        key = page_key(key, label[: 4 * page_size], label[4 * page_size :])
    return key


def _group_bytes(layout: KVLayout, group: int) -> int:
    """What a page of one group fills of a block."""
    return layout._group_bytes(layout.groups[group], layout.page_size)


def _device_pages(cache: PagedCache) -> DevicePages:
    """Reads and writes blocks, wherever the device's memory is. It holds none: nothing else happens meanwhile."""
    return DevicePages(cache.pool, taken=lambda blocks: None, settled=lambda blocks, cached: None)
