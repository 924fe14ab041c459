"""Every call the disk tier makes to the file system. Knows nothing of what the files hold.

All of it goes through a ``Files`` that is injected, so that tests can fail, cut, lose and kill at any call. Files are
named relative to the descriptor of their folder: a folder that is moved or replaced meanwhile is never left. Links are
not followed, and opening never waits (a FIFO would).
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kvpager import native

DIRECT = getattr(os, "O_DIRECT", 0)  # past the page cache; 0 where the system has no such thing
_THREADS = 32  # reads at once: what disks want whose answers take long
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Buffers = Sequence[np.ndarray]  # uint8, contiguous


class Files(Protocol):
    """Raises OSError. Reads and writes may be short."""

    def make_folder(self, path: str) -> None: ...

    def open_folder(self, path: str, follow_link: bool) -> int: ...

    def stat_path(self, path: str) -> os.stat_result:
        """Of a link itself, not of what it names."""
        ...

    def names(self, folder: int) -> list[str]: ...

    def create(self, folder: int, name: str) -> int:
        """A new file, open for writing; nobody else may read it, whatever the umask."""
        ...

    def open(self, folder: int, name: str, flags: int) -> int: ...

    def close(self, fd: int) -> None: ...

    def stat(self, fd: int) -> os.stat_result: ...

    def stat_name(self, folder: int, name: str) -> os.stat_result:
        """Of a link itself, not of what it names."""
        ...

    def preadv(self, fd: int, buffers: Buffers, offset: int) -> int: ...

    def read_many(self, fds: np.ndarray, offsets: np.ndarray, into: np.ndarray) -> np.ndarray:
        """Fills each row of ``into`` (uint8 [n, size], rows contiguous) from ``offsets[i]`` of file ``fds[i]`` on.

        ``fds`` int32 [n], ``offsets`` int64 [n]. int64 [n]: bytes read, fewer than a row where the file ends; or minus
        the error's number. Raises nothing.
        """
        ...

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int: ...

    def fallocate(self, fd: int, size: int) -> None:
        """Takes the room of bytes [0, size) for good."""
        ...

    def fdatasync(self, fd: int) -> None: ...

    def sync_folder(self, folder: int) -> None: ...

    def rename(self, folder: int, name: str, new_name: str) -> None: ...

    def unlink(self, folder: int, name: str) -> None: ...

    def lock(self, fd: int) -> bool:
        """Whether this process has the file to itself now, until it is closed."""
        ...


class SystemFiles:
    def __init__(self) -> None:
        self._reader: Any = None  # made with the first use: it has threads

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def open_folder(self, path: str, follow_link: bool) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow_link else os.O_NOFOLLOW))

    def stat_path(self, path: str) -> os.stat_result:
        return os.lstat(path)

    def names(self, folder: int) -> list[str]:
        return os.listdir(folder)

    def create(self, folder: int, name: str) -> int:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _ALWAYS, 0o600, dir_fd=folder)
        os.fchmod(fd, 0o600)
        return fd

    def open(self, folder: int, name: str, flags: int) -> int:
        return os.open(name, flags | _ALWAYS, dir_fd=folder)

    def close(self, fd: int) -> None:
        os.close(fd)

    def stat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def stat_name(self, folder: int, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def preadv(self, fd: int, buffers: Buffers, offset: int) -> int:
        return os.preadv(fd, [buffer.data for buffer in buffers], offset)

    def read_many(self, fds: np.ndarray, offsets: np.ndarray, into: np.ndarray) -> np.ndarray:
        kernels = native.module()
        if kernels is None:
            return read_each(self, fds, offsets, into)
        if self._reader is None:
            self._reader = kernels.RangeReader(max_threads=_THREADS)
        found = np.zeros(len(fds), np.int64)
        target, stride = into.ctypes.data, into.strides[0]
        self._reader.read(fds, offsets, target=target, stride=stride, bytes=into.shape[1], done=found)
        return found

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int:
        return os.pwritev(fd, [buffer.data for buffer in buffers], offset)

    def fallocate(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_folder(self, folder: int) -> None:
        os.fsync(folder)

    def rename(self, folder: int, name: str, new_name: str) -> None:
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, folder: int, name: str) -> None:
        os.unlink(name, dir_fd=folder)

    def lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def read_all(files: Files, fd: int, buffers: Buffers, offset: int) -> bool:
    """Fills the buffers from ``offset`` on; False where the file ends before they are full."""
    left = list(buffers)
    while left:
        done = files.preadv(fd, left, offset)
        if done == 0:
            return False
        offset += done
        left = _after(left, done)
    return True


def read_each(files: Files, fds: np.ndarray, offsets: np.ndarray, into: np.ndarray) -> np.ndarray:
    """``Files.read_many``, one row after the other."""
    found = np.zeros(len(into), np.int64)
    for at, (fd, offset, row) in enumerate(zip(fds.tolist(), offsets.tolist(), into, strict=True)):
        try:
            while found[at] < len(row) and (done := files.preadv(fd, [row[found[at] :]], offset + int(found[at]))):
                found[at] += done
        except OSError as error:
            found[at] = -(error.errno or errno.EIO)
    return found


def write_all(files: Files, fd: int, buffers: Buffers, offset: int) -> None:
    left = list(buffers)
    while left:
        done = files.pwritev(fd, left, offset)
        if done == 0:
            raise OSError(5, "a write that writes nothing")
        offset += done
        left = _after(left, done)


def _after(buffers: list[np.ndarray], done: int) -> list[np.ndarray]:
    """What is left of the buffers after their first ``done`` bytes."""
    for at, buffer in enumerate(buffers):
        if done < buffer.nbytes:
            return [buffer[done:], *buffers[at + 1 :]]
        done -= buffer.nbytes
    return []
