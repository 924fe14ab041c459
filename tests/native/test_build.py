"""The compiled module as it is installed: built wherever it can be, and a good guest in a process with torch."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvpager import native as loader
from tests.native.sanitize import ROOT

_SANITIZE = [sys.executable, str(ROOT / "tests" / "native" / "sanitize.py")]
# Those of builds that are used: sanitized ones share what is not inlined in them, and run where they were built only.
_OBJECTS = sorted(
    path
    for path in (ROOT / "build").glob("*/CMakeFiles/kernels_*.dir/*.o")
    if not path.parts[-4].startswith("sanitize-")
)


def _output(*command: str | Path) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not here")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _needs_gcc() -> None:
    missing = [name for name in ("g++", "nm", "setarch") if shutil.which(name) is None]
    if missing := missing + loader.missing_to_build():
        pytest.skip(f"can't build: no {', '.join(missing)}")


def test_the_module_is_there_where_it_can_be_built() -> None:
    """An installation without kernels is silent, so that a kernel that doesn't compile has to be noticed here."""
    if missing := loader.missing_to_build():
        pytest.skip(f"can't build: no {', '.join(missing)}")
    assert loader.module() is not None, loader.why_not()


def test_it_asks_for_openmp_by_the_name_that_torch_s_has(native: ModuleType) -> None:
    """A runtime of its own, or one under another name, would bring a second set of threads."""
    dynamic = _output("readelf", "-d", str(native.__file__))
    needed = re.findall(r"NEEDED.*\[(.+)\]", dynamic)
    assert "libc.so.6" in needed  # that the pattern finds what it should
    if "libomp.so.5" in needed:
        pytest.skip("built with clang, whose OpenMP runtime is not torch's")
    assert "libgomp.so.1" in needed
    assert not any("torch" in name or "python" in name for name in needed)
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_it_offers_one_symbol(native: ModuleType) -> None:
    lines = _output("nm", "-D", "--defined-only", str(native.__file__)).splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__native"]


@pytest.mark.parametrize("path", _OBJECTS, ids=lambda path: f"{path.parts[-4]}-{path.parent.stem}-{path.name}")
def test_no_kernel_shares_code_between_instruction_sets(path: Path) -> None:
    """The linker keeps one copy of a shared function: were it that of AVX-512, lesser processors would trap in it."""
    shared = [line for line in _output("nm", "-C", path).splitlines() if re.match(r"\S* [VWu] ", line)]
    isa = path.parent.stem.removeprefix("kernels_")
    assert [line for line in shared if f"kv::{isa}::" not in line and " DW.ref." not in line] == []


def test_the_thread_sanitizer_sees_races_and_nothing_else(tmp_path: Path) -> None:
    _needs_gcc()
    sources = [ROOT / "csrc" / "sanitize" / name for name in ("openmp.cpp", "control.cpp")]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    for source, to in zip(sources, objects, strict=True):
        compile_one = ("g++", "-std=gnu++20", "-O1", "-g", "-fopenmp", "-fsanitize=thread", "-Wall", "-Wextra", "-c")
        subprocess.run([*compile_one, source, "-o", to], check=True)
    control = tmp_path / "control"
    subprocess.run(["g++", "-fsanitize=thread", *objects, "-o", control, "-ldl"], check=True)
    clean = subprocess.run(["setarch", "-R", control, "clean"], capture_output=True, text=True)
    assert (clean.returncode, clean.stderr) == (0, "")
    race = subprocess.run(["setarch", "-R", control, "race"], capture_output=True, text=True)
    assert "WARNING: ThreadSanitizer: data race" in race.stderr


def test_kernels_that_touch_raw_ranges_run_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    """The smoke test of each change, compiled in a second; `make sanitize` runs all kernels."""
    _needs_gcc()
    flags = ("-std=gnu++20", "-O1", "-g", "-Wall", "-Wextra", "-Wno-psabi", "-DKV_ISA=portable", "-DKV_ISA_portable")
    sanitized = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = [ROOT / "csrc" / name for name in ("sanitize/memory.cpp", "block_copy.isa.cpp", "checksum.isa.cpp")]
    program = tmp_path / "memory"
    subprocess.run(["g++", *flags, *sanitized, *sources, "-o", program], check=True)
    clean = subprocess.run([program, "clean"], capture_output=True, text=True)
    assert (clean.returncode, clean.stderr) == (0, "")
    wrong = subprocess.run([program, "wrong"], capture_output=True, text=True)
    assert "AddressSanitizer: heap-buffer-overflow" in wrong.stderr


@pytest.mark.heavy
@pytest.mark.timeout(0)
def test_a_sanitized_build_runs_clean(tmp_path: Path) -> None:
    """Of the module as a whole, with a short run; `make sanitize` is the whole one."""
    _needs_gcc()
    tests = ["tests/native/test_module.py"]
    clean = subprocess.run([*_SANITIZE, "address", "--portable", *tests], capture_output=True, text=True)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert " passed" in clean.stdout
    control = subprocess.run(
        [*_SANITIZE, "address", "--portable", "tests/native/sanitize_control.py"], capture_output=True, text=True
    )
    assert control.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in control.stderr
