"""File systems that go wrong, for tests of whatever is given a ``Files``.

FaultyFiles     some calls fail, are cut short, hang on an event, or end the process
TracedFiles     notes what is written; ``replay`` makes the folder that a loss of power may leave behind
"""

import errno
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.tiers.disk.files import Files, SystemFiles, read_each

CHANGING = {"make_folder", "create", "pwritev", "fallocate", "fdatasync", "sync_folder", "rename", "unlink", "close"}

Fault = Callable[[Callable[..., Any], tuple[Any, ...]], Any]  # is given the call and its arguments; returns its result


def error(number: int) -> Fault:
    def fail(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def short(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Half of the first buffer, and no more for ever: the next call fails."""
    fd, buffers, offset = arguments
    return call(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)


def bug(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    raise RuntimeError("an exception in the worker")


def kill_before(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    call(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class FaultyFiles:
    """``fault`` meets the calls of ``only`` from number ``first`` on (counting from 0), ``times`` of them."""

    inner: Any = field(default_factory=SystemFiles)
    fault: Fault | None = None
    first: int = 0
    times: int = 1 << 62
    only: set[str] = field(default_factory=lambda: set(CHANGING))
    num_calls: int = 0  # of ``only``
    num_faults: int = 0

    def fail(self, fault: Fault | None, only: set[str] | None = None, *, first: int = 0, times: int = 1 << 62) -> None:
        self.fault, self.first, self.times = fault, self.num_calls + first, times
        if only is not None:
            self.only, self.num_calls, self.first = only, 0, first

    def read_many(self, fds: np.ndarray, offsets: np.ndarray, into: np.ndarray) -> np.ndarray:
        """Through ``preadv``, so that it fails when that is to fail."""
        return read_each(self, fds, offsets, into)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)

        def through(*arguments: Any) -> Any:
            if name not in self.only:
                return call(*arguments)
            number, self.num_calls = self.num_calls, self.num_calls + 1
            if self.fault is None or not self.first <= number < self.first + self.times:
                return call(*arguments)
            self.num_faults += 1
            return self.fault(call, arguments)

        return through


def short_then(number: int) -> Fault:
    """The first call writes half, the next one fails."""
    calls = 0

    def fault(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal calls
        calls += 1
        return short(call, arguments) if calls == 1 else error(number)(call, arguments)

    return fault


EIO, ENOSPC, EROFS, EACCES = error(errno.EIO), error(errno.ENOSPC), error(errno.EROFS), error(errno.EACCES)


class FullDisk:
    """A ``Files`` on which slabs take at most ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._inner = SystemFiles()
        self._taken: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def create(self, folder: int, name: str) -> int:
        fd = self._inner.create(folder, name)
        self._names[fd] = name
        return fd

    def fallocate(self, fd: int, size: int) -> None:
        if sum(self._taken.values()) + size > self.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._inner.fallocate(fd, size)
        self._taken[self._names[fd]] = size

    def rename(self, folder: int, name: str, new_name: str) -> None:
        self._inner.rename(folder, name, new_name)
        self._taken[new_name] = self._taken.pop(name, 0)

    def unlink(self, folder: int, name: str) -> None:
        self._inner.unlink(folder, name)
        self._taken.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# -- lost and reordered writes -------------------------------------------------------------------------------------

_SECTOR = 512


@dataclass(frozen=True)
class Done:
    """One call that changed something. ``file`` numbers the files in the order in which they were made."""

    call: str
    file: int = -1
    offset: int = 0
    content: bytes = b""
    name: str = ""
    new_name: str = ""


class TracedFiles:
    def __init__(self) -> None:
        self.trace: list[Done] = []
        self._inner: Files = SystemFiles()
        self._file_of_fd: dict[int, int] = {}
        self._file_of_name: dict[str, int] = {}
        self._num_files = 0

    def create(self, folder: int, name: str) -> int:
        fd = self._inner.create(folder, name)
        self._file_of_fd[fd] = self._file_of_name[name] = self._num_files
        self.trace.append(Done("create", self._num_files, name=name))
        self._num_files += 1
        return fd

    def open(self, folder: int, name: str, flags: int) -> int:
        fd = self._inner.open(folder, name, flags)
        self._file_of_fd[fd] = self._file_of_name[name]
        return fd

    def pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        done = self._inner.pwritev(fd, buffers, offset)
        content = b"".join(buffer.tobytes() for buffer in buffers)[:done]
        self.trace.append(Done("write", self._file_of_fd[fd], offset, content))
        return done

    def fallocate(self, fd: int, size: int) -> None:
        self._inner.fallocate(fd, size)
        self.trace.append(Done("size", self._file_of_fd[fd], size))

    def fdatasync(self, fd: int) -> None:
        self._inner.fdatasync(fd)
        self.trace.append(Done("sync", self._file_of_fd[fd]))

    def sync_folder(self, folder: int) -> None:
        self._inner.sync_folder(folder)
        self.trace.append(Done("sync folder"))

    def rename(self, folder: int, name: str, new_name: str) -> None:
        self._inner.rename(folder, name, new_name)
        self._file_of_name[new_name] = self._file_of_name.pop(name)
        self.trace.append(Done("rename", name=name, new_name=new_name))

    def unlink(self, folder: int, name: str) -> None:
        self._inner.unlink(folder, name)
        self.trace.append(Done("unlink", name=name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def replay(trace: list[Done], folder: Path, seed: int) -> None:
    """Makes ``folder`` as a loss of power after ``trace`` may leave it.

    What was synced is there. Of other writes each sector may be there or not, whatever came before or after it; changes
    of names come in their order, up to any of them; and a file may have been given its size, or not.
    """
    rng = random.Random(seed)
    last_sync = {done.file: at for at, done in enumerate(trace) if done.call == "sync"}
    folder_sync = max((at for at, done in enumerate(trace) if done.call == "sync folder"), default=-1)
    last_name_change = rng.randint(folder_sync, len(trace))
    contents: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for at, done in enumerate(trace):
        is_synced = at < last_sync.get(done.file, -1)
        if done.call in ("create", "rename", "unlink"):
            if at <= last_name_change:
                _change_names(names, done)
            contents.setdefault(done.file, bytearray())
        elif done.call == "size" and (is_synced or rng.random() < 0.7):
            contents[done.file].extend(bytes(done.offset - len(contents[done.file])))
        elif done.call == "write":
            _write(contents[done.file], done, rng if not is_synced else None)
    folder.mkdir(mode=0o700)
    for name, file in names.items():
        (folder / name).write_bytes(contents[file])
        (folder / name).chmod(0o600)


def _change_names(names: dict[str, int], done: Done) -> None:
    if done.call == "create":
        names[done.name] = done.file
    elif done.call == "rename":
        names[done.new_name] = names.pop(done.name)
    else:
        names.pop(done.name)


def _write(content: bytearray, done: Done, rng: random.Random | None) -> None:
    fate = rng.choice(("all", "none", "some")) if rng else "all"
    for at in range(0, len(done.content), _SECTOR):
        if fate == "all" or (fate == "some" and rng is not None and rng.random() < 0.5):
            piece, start = done.content[at : at + _SECTOR], done.offset + at
            if start + len(piece) > len(content):
                content.extend(bytes(start + len(piece) - len(content)))
            content[start : start + len(piece)] = piece
