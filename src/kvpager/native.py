"""The native kernels, where they could be built: loads the compiled module, says why it is missing, and chooses the
instruction set.

Imports nothing of torch, but shares its OpenMP runtime: two runtimes in one process would fight for the cores.
"""

import ctypes
import shutil
import sysconfig
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from kvpager.errors import ConfigError

_COMPILERS = ("c++", "g++", "clang++")
_REINSTALL = "pip install --no-deps --no-cache-dir --force-reinstall"  # a wheel without kernels may lie in pip's cache

is_off = False  # by choose("off"), which alone sets it


@cache
def _load() -> tuple[ModuleType | None, str]:
    _share_openmp()
    try:
        return import_module("kvpager._native"), ""
    except ImportError as error:
        if find_spec("kvpager._native") is not None:
            return None, f"can't be loaded: {error}"
    if missing := missing_to_build():
        return None, f"not built: get {' and '.join(missing)}, then install kvpager again with {_REINSTALL}"
    return None, f"not built, although a C++ compiler is here: {_REINSTALL} -v shows why"


def module() -> ModuleType | None:
    """The compiled module, or None where it is missing or turned off; see ``why_not``."""
    return None if is_off else _load()[0]


def why_not() -> str:
    """Why there are no native kernels; empty where there are."""
    return "turned off by option 'native'" if is_off else _load()[1]


def choose(name: str) -> None:
    """Which kernels the whole process uses from now on: ``auto`` is the best instruction set that build and processor
    have, ``off`` is none, else a set by its name. Raises ConfigError for one that is not here.
    """
    global is_off
    loaded, reason = _load()
    sets = loaded.available_isas() if loaded else []
    if name not in ("auto", "off", *sets):
        found = f"only {', '.join(sets)}" if sets else f"no native kernels ({reason})"
        raise ConfigError(f"option 'native' asks for {name!r}, but this build and processor have {found}")
    is_off = name == "off"
    if loaded and not is_off:
        loaded.set_isa(sets[-1] if name == "auto" else name)


def missing_to_build() -> list[str]:
    """What this machine lacks to compile the kernels; CMake is not in it, because pip fetches that."""
    missing = []
    if not any(shutil.which(name) for name in _COMPILERS):
        missing.append("a C++ compiler (package g++)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append("Python's headers (package python3-dev)")
    return missing


def _share_openmp() -> None:
    """Loads torch's libgomp.so.1 before ours is looked for, so that both use the same one by its name."""
    torch = find_spec("torch")
    for folder in torch.submodule_search_locations or [] if torch else []:
        library = Path(folder) / "lib" / "libgomp.so.1"
        if library.exists():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
