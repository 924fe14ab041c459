"""Where fetched models are kept on this machine, and one lock a model.

    $KVPAGER_HOME, else $XDG_CACHE_HOME/kvpager, else ~/.cache/kvpager
    └── models/
        ├── smollm2/            a whole model folder; appears and disappears by rename
        ├── .smollm2.lock       held while the folder is made or removed
        ├── .smollm2.new/       being made; worthless to all but the holder of the lock
        ├── .smollm2.source/    what it is made of, likewise
        └── .smollm2.old/       being removed

Does not know what is in a model folder, or which models there are.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvpager.errors import ModelError


def models_home() -> Path:
    """The folder of all fetched models; it need not exist yet."""
    own, shared = os.environ.get("KVPAGER_HOME", ""), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return Path(own).expanduser().absolute() / "models"
    if Path(shared).is_absolute():  # the XDG rule: a relative value is ignored
        return Path(shared) / "kvpager" / "models"
    return Path.home() / ".cache" / "kvpager" / "models"


def model_folder(name: str) -> Path:
    """The folder of the fetched model ``name``; it need not exist yet."""
    return models_home() / name


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Held by one process at a time for each model; waits for the other. Raises ModelError if nothing can be kept."""
    home = models_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f".{name}.lock").open("w")
    except OSError as error:
        raise ModelError(
            f"models can't be kept in {home}: {error.strerror}. Set KVPAGER_HOME to a folder that can be written."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(name: str) -> Iterator[Path]:
    """An empty folder to build ``name`` in; it takes the model's place when the block ends without an error.

    REQUIRES: ``locked(name)``. Everything is on the disk before the rename, so neither a crash nor a power cut leaves a
    half-made model under its name.
    """
    folder, new = model_folder(name), _beside(name, "new")
    shutil.rmtree(new, ignore_errors=True)  # left by a process that died
    try:
        new.mkdir()
        yield new
        _sync_all(new)
        old = _set_aside(name)
        new.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def discard(name: str) -> None:
    """Removes the model's folder: out of sight first, then from the disk. REQUIRES: ``locked(name)``, a folder."""
    shutil.rmtree(_set_aside(name))


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """An empty folder for what is needed only while ``name`` is made. REQUIRES: ``locked(name)``."""
    folder = _beside(name, "source")
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that died
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set_aside(name: str) -> Path:
    """Takes away the model's folder, if there is one, and says where it is now."""
    folder, old = model_folder(name), _beside(name, "old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    return old


def _beside(name: str, suffix: str) -> Path:
    return models_home() / f".{name}.{suffix}"


def _sync_all(folder: Path) -> None:
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
