"""The native kernels, where they could be built: loads the compiled module and says why it is missing.

Imports nothing of torch, but shares its OpenMP runtime: two runtimes in one process would fight for the cores.
"""

import ctypes
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


@cache
def _load() -> tuple[ModuleType | None, str]:
    _share_openmp()
    try:
        return import_module("kvpager._native"), ""
    except ImportError as error:
        if find_spec("kvpager._native") is None:
            return None, "not built: install again on a machine with a C++ compiler (pip shows why with -v)"
        return None, f"can't be loaded: {error}"


def module() -> ModuleType | None:
    """The compiled module, or None where it is missing; see ``why_not``."""
    return _load()[0]


def why_not() -> str:
    """Why there are no native kernels; empty where there are."""
    return _load()[1]


def _share_openmp() -> None:
    """Loads torch's libgomp.so.1 before ours is looked for, so that both use the same one by its name."""
    torch = find_spec("torch")
    for folder in torch.submodule_search_locations or [] if torch else []:
        library = Path(folder) / "lib" / "libgomp.so.1"
        if library.exists():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
