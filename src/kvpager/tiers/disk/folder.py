"""The folder of a disk tier: who may open it, which files in it are ours, and the bytes they take.

    lock               held by the one process that writes
    slab-<id>.kv       a slab; <id> is 16 hex digits and never used again
    slab-<id>.tmp      a slab that is being made; removed when the folder is opened
    slab-<id>.bad      set aside because it is damaged; removed when its room is needed

Any other file is left alone and not counted. Worker threads share it: what changes is behind a lock.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock

from kvpager.errors import ConfigError, TierFull
from kvpager.tiers.disk.files import Files

LOCK_NAME = "lock"
_NAME = re.compile(r"slab-([0-9a-f]{16})\.(kv|tmp|bad)")


@dataclass(frozen=True, slots=True)
class SlabName:
    slab: int
    ending: str

    def __str__(self) -> str:
        return f"slab-{self.slab:016x}.{self.ending}"

    @staticmethod
    def parse(name: str) -> "SlabName | None":
        found = _NAME.fullmatch(name)
        return None if found is None else SlabName(int(found[1], 16), found[2])


@dataclass(frozen=True, slots=True)
class Spare:
    """A file that goes when its room is needed."""

    name: str
    size: int


class Folder:
    """REQUIRES: ``enter`` before anything else. ``capacity``: bytes of all slab files together."""

    def __init__(self, files: Files, path: str, capacity: int, *, read_only: bool, allow_shared: bool) -> None:
        self.files = files
        self.path = os.path.abspath(path)  # the process may go to another folder
        self.capacity = capacity
        self.read_only = read_only
        self.held = 0  # bytes: the sizes of all slab files, whatever their ending
        self.lock = RLock()  # of growing and shrinking
        self.fd = -1
        self._allow_shared = allow_shared
        self._lock_fd = -1
        self._spare: list[Spare] = []  # the first goes first
        self._next_slab = 0

    # -- opening ------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Raises ConfigError where the folder must not be used, OSError where it can't be opened."""
        if not self.read_only:
            self._make()
        try:
            self.fd = self.files.open_folder(self.path, self._allow_shared)
        except OSError as error:
            raise ConfigError(
                f"the disk tier's folder {self.path} can't be opened: {error.strerror}; {_LINK}"
            ) from error
        try:
            self._refuse_if_shared()
            if not self.read_only:
                self._lock()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        for fd in (self._lock_fd, self.fd):
            if fd >= 0:
                self.files.close(fd)
        self.fd = self._lock_fd = -1

    def _make(self) -> None:
        try:
            self.files.make_folder(self.path)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(f"the disk tier's folder {self.path} can't be made: {error.strerror}") from error

    def _refuse_if_shared(self) -> None:
        facts = self.files.stat(self.fd)
        if self._allow_shared:
            return
        if facts.st_uid != os.geteuid():
            raise ConfigError(f"the disk tier's folder {self.path} belongs to another user; {_SHARED}")
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise ConfigError(
                f"the disk tier's folder {self.path} is open to other users (mode {mode:04o}): "
                f"chmod 700 {self.path}, or {_SHARED}"
            )

    def _lock(self) -> None:
        try:
            self._lock_fd = self.files.create(self.fd, LOCK_NAME)
        except FileExistsError:
            self._lock_fd = self.files.open(self.fd, LOCK_NAME, os.O_RDWR)
        if not self.files.lock(self._lock_fd):
            raise ConfigError(
                f"another process writes to the disk tier's folder {self.path}: stop it, use another folder, or open "
                "this one with read_only=True"
            )

    # -- what is in it ------------------------------------------------------------------------------------------

    def slab_names(self) -> list[SlabName]:
        """The files of ours, oldest id first. Also reserves their ids."""
        found = [known for name in self.files.names(self.fd) if (known := SlabName.parse(name)) is not None]
        found.sort(key=lambda known: (known.slab, known.ending))
        if found:
            self._next_slab = max(self._next_slab, found[-1].slab + 1)
        return found

    def new_slab(self) -> int:
        self._next_slab += 1
        return self._next_slab - 1

    def count(self, size: int) -> None:
        """A file of ``size`` bytes is there from now on (or, negative, is gone)."""
        with self.lock:
            self.held += size

    def spare(self, files: Iterable[Spare], *, first: bool = False) -> None:
        """These files, which are counted already, may go when room is needed; oldest first."""
        with self.lock:
            self._spare = [*files, *self._spare] if first else [*self._spare, *files]

    @property
    def spare_bytes(self) -> int:
        return sum(file.size for file in self._spare)

    def set_aside(self, name: SlabName, size: int) -> None:
        """A damaged file gets the ending .bad and goes first when room is needed. It is counted already."""
        aside = str(SlabName(name.slab, "bad"))
        with self.lock:
            self.files.rename(self.fd, str(name), aside)
            self.spare([Spare(aside, size)], first=True)

    def remove(self, name: str, size: int) -> None:
        with self.lock:
            self.files.unlink(self.fd, name)
            self.held -= size

    def remove_spare(self) -> bool:
        """Removes the file that goes first. False if there is none."""
        with self.lock:
            if not self._spare:
                return False
            file = self._spare.pop(0)
            try:
                self.remove(file.name, file.size)
            except FileNotFoundError:
                self.held -= file.size
            return True

    def make_room(self, size: int) -> None:
        """Removes spare files until ``size`` more bytes fit. Raises TierFull where they do not."""
        with self.lock:
            while self.held + size > self.capacity:
                if not self.remove_spare():
                    raise TierFull(f"limit: {size} more bytes exceed the folder's capacity of {self.capacity}")

    # -- whether it is still the one that was opened ------------------------------------------------------------

    def is_in_place(self) -> bool:
        """False after the folder was removed, moved away, or mounted over."""
        try:
            there, ours = self.files.stat_path(self.path), self.files.stat(self.fd)
        except OSError:
            return False
        if stat.S_ISLNK(there.st_mode):
            return self._allow_shared and ours.st_nlink > 0
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) and ours.st_nlink > 0

    def forget_files(self) -> None:
        self.held, self._spare = 0, []

    def enter_again(self) -> None:
        """Another folder is at the path now, or none: begins afresh there. Slabs found in it are spare.

        Raises OSError or ConfigError where that does not work yet; then nothing has changed but that it is left.
        """
        self.leave()
        self.forget_files()
        self.enter()
        for name in self.slab_names():
            size = self.files.stat_name(self.fd, str(name)).st_size
            self.held += size
            self._spare.append(Spare(str(name), size))


_LINK = "give an existing parent folder and a folder that is no link"
_SHARED = "set allow_shared=True if you trust all who can write there"
