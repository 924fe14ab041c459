"""Builds the native module with sanitizers and runs its tests against that build:

    python tests/native/sanitize.py address|thread [--portable] [pytest arguments]

``address`` finds accesses outside of memory and undefined behaviour (AddressSanitizer, UBSan), ``thread`` finds data
races (ThreadSanitizer). Python and torch are not instrumented: their leaks and their own threads are none of our
business. Under ``thread`` the kernels' parallel regions run on csrc/sanitize/openmp.cpp, because the sanitizer can't
see how libgomp synchronises. Needs GCC; each kind has its own folder under build/.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MODULE = "KV_SANITIZED_MODULE"  # set for the second start of this file, which runs the tests

# Beside wrong calls of the policy and the replays, which tests/native has, right ones.
_TESTS = [
    "tests/native",
    "tests/attention/test_page_mass.py",
    "tests/integrations/test_native_step.py",
    "tests/eviction/test_adaptive.py",
    *(f"tests/simulator/test_{name}.py" for name in ("adaptive_path", "lru", "min")),
]
_SANITIZERS = {"address": "address,undefined", "thread": "thread"}
_PRELOADED = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
_SETTINGS = {
    # Leaks: Python keeps memory until it exits.
    "address": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONMALLOC": "malloc"},
    # Memory that an uninstrumented library hands over by means of its own would be reported otherwise.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1 halt_on_error=1"},
}


def build(kind: str, portable: bool) -> Path:
    """The module built with these sanitizers."""
    folder = ROOT / "build" / (f"sanitize-{kind}" + ("-portable" if portable else ""))
    settings = {
        "CMAKE_CXX_COMPILER": "g++",
        "CMAKE_BUILD_TYPE": "Sanitize",  # none of the usual: no -DNDEBUG, nothing stripped
        "Python_EXECUTABLE": sys.executable,
        "KV_SANITIZE": _SANITIZERS[kind],
        "KV_PORTABLE": "ON" if portable else "OFF",
    }
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    cmake, ninja = shutil.which("cmake", path=tools), shutil.which("ninja", path=tools)
    if cmake is None:
        raise SystemExit("cmake is not here; `make venv` gets it")
    configure = [cmake, "-S", ROOT / "csrc", "-B", folder, *(f"-D{name}={value}" for name, value in settings.items())]
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    subprocess.run([*configure, *generator], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--parallel"], check=True, stdout=subprocess.DEVNULL)
    (module,) = folder.glob("_native*.so")
    if kind == "thread":
        wanted = subprocess.run(["nm", "-D", "--undefined-only", module], check=True, capture_output=True, text=True)
        missing = [line.split()[-1] for line in wanted.stdout.splitlines() if "GOMP_" in line or "omp_" in line]
        if missing:
            raise SystemExit(f"csrc/sanitize/openmp.cpp has to learn {', '.join(missing)}")
    return module


def run(kind: str, module: Path, arguments: list[str]) -> int:
    """Runs the tests in a process of their own, because sanitizers have to be loaded first."""
    environment = {
        **os.environ,
        **_SETTINGS[kind],
        _MODULE: str(module),
        "LD_PRELOAD": ":".join(_library(name) for name in (*_PRELOADED[kind], "libstdc++.so.6")),
        "OMP_NUM_THREADS": "2",
    }
    # ThreadSanitizer needs addresses where it expects them.
    fixed = ["setarch", "-R"] if kind == "thread" else []
    return subprocess.run([*fixed, sys.executable, __file__, *arguments], env=environment, cwd=ROOT).returncode


def _library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


def _run_tests(module: str, arguments: list[str]) -> int:
    import torch  # noqa: F401 - brings its libgomp, which the module shares

    spec = importlib.util.spec_from_file_location("kvpager._native", module)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["kvpager._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["kvpager._native"])

    import pytest

    print(f"testing {module}")
    # A sanitizer reports to the descriptor and ends the process: what pytest holds back then is lost.
    fixed = ["-q", "--capture=sys", "-p", "no:cacheprovider", "--timeout=0"]
    return pytest.main([*fixed, *(arguments or _TESTS)])


if __name__ == "__main__":
    if _MODULE in os.environ:
        sys.exit(_run_tests(os.environ[_MODULE], sys.argv[1:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=_SANITIZERS)
    parser.add_argument("--portable", action="store_true", help="only the portable instruction set: a shorter build")
    options, rest = parser.parse_known_args()
    sys.exit(run(options.kind, build(options.kind, options.portable), rest))
