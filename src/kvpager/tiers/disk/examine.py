"""Looks into a folder of slabs without opening a tier: what it holds, whether it is whole, and how to empty it.

Needs neither page size nor key, so a seal is not checked; the checksum of what is stored is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvpager.checksum import checksum
from kvpager.tiers.disk.contents import FoundSlab, scan
from kvpager.tiers.disk.files import SystemFiles
from kvpager.tiers.disk.folder import Folder, SlabName
from kvpager.tiers.disk.session_files import session_names
from kvpager.tiers.disk.slab import Slab, open_slab


@dataclass(frozen=True, slots=True)
class SlabReport:
    """``state``: "ok", or why its pages can't be told."""

    name: str
    state: str
    file_bytes: int
    slot_bytes: int = 0
    slots: int = 0
    pages: int = 0
    damaged: int = 0
    encoding: str = ""


@dataclass(slots=True)
class FolderReport:
    """``pages``: with a whole header. ``damaged``: with another; after ``verify`` also those with wrong bytes, which
    ``wrong`` names as "slab slot"."""

    folder: str
    file_bytes: int = 0
    pages: int = 0
    payload_bytes: int = 0
    damaged: int = 0
    slabs: list[SlabReport] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.damaged and all(slab.state in ("ok", "of a later version") for slab in self.slabs)


def describe(path: str) -> FolderReport:
    """Reads headers only. Raises ConfigError where there is no folder."""
    return _report(path, read_payloads=False)


def verify(path: str) -> FolderReport:
    """Reads every page as well."""
    return _report(path, read_payloads=True)


def clear(path: str) -> FolderReport:
    """Removes slabs and sessions; says what was there. Raises ConfigError while a process writes to the folder."""
    report = describe(path)
    folder = Folder(SystemFiles(), path, 0, read_only=False, allow_shared=True)
    folder.enter()
    try:
        for name in (*map(str, folder.slab_names()), *session_names(folder.files.names(folder.fd))):
            folder.files.unlink(folder.fd, name)
        folder.files.sync_folder(folder.fd)
    finally:
        folder.leave()
    return report


def _report(path: str, *, read_payloads: bool) -> FolderReport:
    folder = Folder(SystemFiles(), path, 0, read_only=True, allow_shared=True)
    folder.enter()
    report = FolderReport(path)
    try:
        for name in folder.slab_names():
            report.slabs.append(_examine(folder, name, report, read_payloads))
            report.file_bytes += report.slabs[-1].file_bytes
    finally:
        folder.leave()
    return report


def _examine(folder: Folder, name: SlabName, report: FolderReport, read_payloads: bool) -> SlabReport:
    size = folder.files.stat_name(folder.fd, str(name)).st_size
    if name.ending != "kv":
        return SlabReport(str(name), "set aside" if name.ending == "bad" else "being made, or left over", size)
    try:
        slab = open_slab(folder, name, direct=False)
    except OSError as error:
        return SlabReport(str(name), error.strerror or "can't be read", size)
    if not isinstance(slab, Slab):
        return SlabReport(str(name), "damaged" if slab is None else "of a later version", size)
    try:
        found = scan(slab)
        wrong = list(_wrong_slots(found)) if read_payloads else []
    finally:
        slab.close()
    damaged = len(found.damaged) + len(wrong)
    report.pages += len(found.slots) - len(wrong)
    report.payload_bytes += int(found.headers["payload_bytes"].sum())
    report.damaged += damaged
    report.wrong += [f"{name} {slot}" for slot in [*found.damaged.tolist(), *wrong]]
    shape = slab.shape
    pages, encoding = len(found.slots) - len(wrong), slab.superblock.encoding
    return SlabReport(str(name), "ok", size, shape.slot_bytes, shape.slots, pages, damaged, encoding)


def _wrong_slots(found: FoundSlab) -> Iterator[int]:
    buffer = np.empty(found.slab.shape.slot_bytes, np.uint8)
    for slot, header in zip(found.slots.tolist(), found.headers, strict=True):
        payload = buffer[: int(header["payload_bytes"])]
        try:
            is_right = found.slab.read_slots(slot, [payload]) and checksum(payload) == header["payload_crc"]
        except OSError:
            is_right = False
        if not is_right:
            yield slot
