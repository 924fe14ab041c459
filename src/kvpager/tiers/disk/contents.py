"""What is in a folder when it is opened: slabs that fit, files that can go, and the pages whose headers are whole.

Only superblocks and header tables are read, each table in one go: 100 GB of pages of 1 MB are 50 MB of headers. There
is no other record of what is stored, so none can be out of step with it.
"""

import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvpager.tiers.disk.folder import Folder, SlabName, Spare
from kvpager.tiers.disk.format import HEADER, Unknown, digests, is_whole, is_written
from kvpager.tiers.disk.slab import Slab, open_slab
from kvpager.types import ContentKey

_AT_ONCE = 1 << 14  # headers read by one call: 8 MiB


@dataclass(slots=True)
class FoundSlab:
    """A slab of ours. ``headers``: HEADER [n] of its whole entries, those of slots ``slots``; ``damaged``: other slots
    that are not empty."""

    slab: Slab
    slots: np.ndarray
    headers: np.ndarray
    damaged: np.ndarray

    @property
    def newest(self) -> int:
        return int(self.headers["generation"].max()) if len(self.headers) else -1


@dataclass(slots=True)
class Contents:
    slabs: list[FoundSlab] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    quarantined: int = 0


def read_contents(folder: Folder, slot_bytes: int, encoding: str, direct: bool | str) -> Contents:
    """Opens what can be used; what can't is counted as spare, leftovers are removed, and damaged files set aside."""
    contents = Contents()
    foreign: list[tuple[int, Spare]] = []
    bad: list[Spare] = []
    for name in folder.slab_names():
        try:
            facts = folder.files.stat_name(folder.fd, str(name))
        except FileNotFoundError:  # its writer removed it just now
            continue
        if name.ending == "tmp":
            if not folder.read_only:
                folder.files.unlink(folder.fd, str(name))
            continue
        folder.count(facts.st_size)
        if name.ending == "bad":
            bad.append(Spare(str(name), facts.st_size))
            continue
        found = _open(folder, name, direct, contents) if stat.S_ISREG(facts.st_mode) else None
        if isinstance(found, Slab) and _fits(found, folder, slot_bytes, encoding):
            contents.slabs.append(scan(found))
        elif found is None:
            _set_aside(folder, name, facts.st_size, contents)
        else:
            if isinstance(found, Slab):
                found.close()
            foreign.append((facts.st_mtime_ns, Spare(str(name), facts.st_size)))
    folder.spare(bad)
    folder.spare([spare for _, spare in sorted(foreign, key=lambda aged: aged[0])])
    _fit(folder, contents)
    return contents


def scan(slab: Slab) -> FoundSlab:
    """Reads the header table."""
    slots, whole, damaged = [], [], []
    for first in range(0, slab.shape.slots, _AT_ONCE):
        headers = slab.read_headers(first, min(_AT_ONCE, slab.shape.slots - first))
        if headers is None:
            break  # it became shorter just now
        written = is_written(headers)
        slab.may_be_written[first : first + len(headers)] = written
        fits = written & is_whole(headers, slab.superblock, first)
        slots.append(first + np.flatnonzero(fits))
        whole.append(headers[fits])
        damaged.append(first + np.flatnonzero(written & ~fits))
    empty = np.empty(0, np.int64)
    return FoundSlab(
        slab,
        np.concatenate([empty, *slots]),
        joined(whole),
        np.concatenate([empty, *damaged]),
    )


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Headers one after the other. (``concatenate`` would leave out the bytes between the fields.)"""
    headers = np.empty(sum(map(len, parts)), HEADER)
    at = 0
    for part in parts:
        headers[at : at + len(part)] = part
        at += len(part)
    return headers


def by_age(slabs: list[FoundSlab]) -> Iterator[tuple[int, int]]:
    """(number of the slab, place in its headers) of every entry, the oldest first."""
    generations = np.concatenate([np.empty(0, np.uint64), *(found.headers["generation"] for found in slabs)])
    numbers = np.repeat(np.arange(len(slabs)), [len(found.headers) for found in slabs])
    places = np.concatenate([np.empty(0, np.int64), *(np.arange(len(found.headers)) for found in slabs)])
    order = np.argsort(generations, kind="stable")
    return zip(numbers[order].tolist(), places[order].tolist(), strict=True)


def keys_of(found: FoundSlab, column: str) -> list[ContentKey]:
    return digests(found.headers[column])


def _open(folder: Folder, name: SlabName, direct: bool | str, contents: Contents) -> Slab | Unknown | None:
    try:
        return open_slab(folder, name, direct)
    except OSError as error:
        contents.failures[f"open: {error.strerror}"] += 1
        return None


def _set_aside(folder: Folder, name: SlabName, size: int, contents: Contents) -> None:
    contents.failures["slab"] += 1
    contents.quarantined += 1
    if not folder.read_only:
        folder.set_aside(name, size)


def _fit(folder: Folder, contents: Contents) -> None:
    """A smaller capacity than last time: spare files go, then whole slabs, those with the oldest content first."""
    if folder.read_only:
        return
    while folder.held > folder.capacity and folder.remove_spare():
        pass
    contents.slabs.sort(key=lambda found: found.newest)
    while folder.held > folder.capacity and contents.slabs:
        slab = contents.slabs.pop(0).slab
        slab.close()
        folder.remove(str(slab.name), slab.shape.file_bytes)


def _fits(slab: Slab, folder: Folder, slot_bytes: int, encoding: str) -> bool:
    is_small_enough = folder.read_only or slab.shape.file_bytes <= folder.capacity
    return is_small_enough and (slab.shape.slot_bytes, slab.superblock.encoding) == (slot_bytes, encoding)
