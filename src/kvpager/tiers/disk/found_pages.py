"""Which pages the headers of a folder name, and in which slots: what a disk tier's books begin with. Reads no file."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from kvpager.tiers.disk.contents import FoundSlab, by_age, keys_of
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey


@dataclass(frozen=True, slots=True)
class FoundPages:
    """``slots`` and their ``pages``, the first generations first. ``older``: slots of entries whose key has a newer
    one. ``newest``: generation; -1: nothing is there."""

    slots: list[int]
    pages: list[Page]
    older: list[int]
    newest: int


def found_pages(slabs: list[FoundSlab], firsts: Sequence[int], identity: bytes) -> FoundPages:
    """``firsts``: the number of each slab's first slot. Of two entries with one key the newer counts.

    Pages of another identity keep their slots under names that nobody asks for.
    """
    keys = [keys_of(found, "key") for found in slabs]
    parents = [keys_of(found, "parent") for found in slabs]
    identities = [keys_of(found, "identity") for found in slabs]
    places = [(first + found.slots).tolist() for first, found in zip(firsts, slabs, strict=True)]
    found: dict[ContentKey, tuple[int, Page]] = {}
    superseded = []
    for number, at in by_age(slabs):
        key, parent, own = keys[number][at], parents[number][at], identities[number][at]
        if own != identity:
            key, parent = _stranger(own, key), _stranger(own, parent)
        older = found.pop(key, None)  # taken out, so that the order is that of the newer
        if older is not None:
            superseded.append(older[0])
        found[key] = (places[number][at], Page(key, parent))
    newest = max((slab.newest for slab in slabs), default=-1)
    return FoundPages([slot for slot, _ in found.values()], [page for _, page in found.values()], superseded, newest)


def _stranger(identity: ContentKey, key: ContentKey) -> ContentKey:
    return ContentKey(sha256(identity + key).digest())
