"""One slab file: reads and writes neighbouring slots and their headers. Knows no books; used by worker threads.

Payloads go past the page cache where the file system allows that (pages are large and seldom read twice; the host tier
is the cache). Headers are small and go through a descriptor of their own, which does use the page cache: the two cover
ranges of the file that share no block.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kvpager.errors import ConfigError
from kvpager.tiers.disk.files import DIRECT, Files, read_all, write_all
from kvpager.tiers.disk.folder import Folder, SlabName
from kvpager.tiers.disk.format import BLOCK, HEADER, Shape, Superblock, Unknown

MOST_BUFFERS = 256  # in one system call; Linux takes 1,024


class Slab:
    """``payload_fd``: through which payloads are moved. ``lost``: why its pages can't be read any more; it stays open
    until no transfer uses it."""

    def __init__(self, files: Files, superblock: Superblock, fd: int, direct_fd: int | None) -> None:
        self._files = files
        self._fd = fd
        self.payload_fd = fd if direct_fd is None else direct_fd
        self.superblock = superblock
        self.shape = superblock.shape
        self.name = SlabName(superblock.slab, "kv")
        self.is_direct = direct_fd is not None
        self.lost: str | None = None
        self.may_be_written = np.zeros(self.shape.slots, np.bool_)  # slots whose header may hold something

    # -- headers ------------------------------------------------------------------------------------------------

    def read_headers(self, first: int, count: int) -> np.ndarray | None:
        """HEADER [count]; None where the file ends before."""
        headers = np.zeros(count, HEADER)
        is_there = read_all(self._files, self._fd, [headers.view(np.uint8)], self.shape.header_at(first))
        return headers if is_there else None

    def write_headers(self, first: int, headers: np.ndarray) -> None:
        self.may_be_written[first : first + len(headers)] = True
        write_all(self._files, self._fd, [headers.view(np.uint8)], self.shape.header_at(first))

    def empty(self, first: int, count: int) -> None:
        """Neither these slots nor what was in them can be found any more."""
        if self.may_be_written[first : first + count].any():
            self.write_headers(first, np.zeros(count, HEADER))
            self.may_be_written[first : first + count] = False

    # -- payloads -----------------------------------------------------------------------------------------------

    def read_slots(self, first: int, buffers: Sequence[np.ndarray]) -> bool:
        """Neighbouring slots; False where the file ends before. REQUIRES: each buffer as long as a slot."""
        return read_all(self._files, self.payload_fd, buffers, self.shape.slot_at(first))

    def write_slots(self, first: int, buffers: Sequence[np.ndarray]) -> None:
        write_all(self._files, self.payload_fd, buffers, self.shape.slot_at(first))

    # -- the file -----------------------------------------------------------------------------------------------

    def fault(self) -> str | None:
        """What is wrong with the file itself."""
        facts = self._files.stat(self._fd)
        if facts.st_nlink == 0:
            return "removed"
        return None if facts.st_size == self.shape.file_bytes else "size"

    def size(self) -> int:
        return self._files.stat(self._fd).st_size

    def sync(self) -> None:
        self._files.fdatasync(self._fd)

    def close(self) -> None:
        for fd in {self._fd, self.payload_fd}:
            with suppress(OSError):
                self._files.close(fd)


def create_slab(folder: Folder, shape: Shape, encoding: str, direct: bool | str) -> Slab:
    """Makes the file under another name first, so a slab is there whole or not at all. Raises OSError, TierFull."""
    files = folder.files
    folder.make_room(shape.file_bytes)
    superblock = Superblock(folder.new_slab(), shape, encoding)
    temporary, name = str(SlabName(superblock.slab, "tmp")), str(SlabName(superblock.slab, "kv"))
    fd = files.create(folder.fd, temporary)
    try:
        folder.count(shape.file_bytes)
        try:
            files.fallocate(fd, shape.file_bytes)
            write_all(files, fd, [superblock.to_bytes()], 0)
            files.fdatasync(fd)
            direct_fd = _open_direct(folder, temporary, os.O_RDWR, direct)
            files.rename(folder.fd, temporary, name)
        except BaseException:
            with suppress(OSError):
                files.unlink(folder.fd, temporary)
            folder.count(-shape.file_bytes)
            raise
    except BaseException:
        with suppress(OSError):
            files.close(fd)
        raise
    return Slab(files, superblock, fd, direct_fd)  # the folder is synced by whoever promises that pages last


def open_slab(folder: Folder, name: SlabName, direct: bool | str) -> "Slab | Unknown | None":
    """None where the file is damaged or no slab. Raises OSError where it can't be read."""
    files = folder.files
    flags = os.O_RDONLY if folder.read_only else os.O_RDWR
    fd = files.open(folder.fd, str(name), flags)
    try:
        content = np.zeros(BLOCK, np.uint8)
        superblock = Superblock.parse(content) if read_all(files, fd, [content], 0) else None
        if isinstance(superblock, Superblock):
            size = files.stat(fd).st_size
            if superblock.slab == name.slab and superblock.shape.file_bytes == size:
                direct_fd = _open_direct(folder, str(name), flags, direct)
                slab = Slab(files, superblock, fd, direct_fd)
                fd = -1
                return slab
            return None
        return superblock
    finally:
        if fd >= 0:
            files.close(fd)


def _open_direct(folder: Folder, name: str, flags: int, direct: bool | str) -> int | None:
    if not direct or not DIRECT:
        return None
    try:
        return folder.files.open(folder.fd, name, flags | DIRECT)
    except OSError as error:
        if direct == "auto":
            return None
        raise ConfigError(f"the file system of {folder.path} has no direct access; open the tier without it") from error
