"""The option ``native``: which kernels a process uses, and why there are none."""

import shutil
from collections.abc import Iterator
from types import ModuleType

import pytest

from kvpager import native as loader
from kvpager.engine import Engine
from kvpager.errors import ConfigError
from tests.tiny_model import tiny_model


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    loader.choose("auto")


def test_auto_is_the_best_set(native: ModuleType, isa: str) -> None:
    loader.choose("auto")
    assert native.isa() == native.available_isas()[-1]


def test_a_set_is_chosen_by_name(native: ModuleType) -> None:
    for name in native.available_isas():
        loader.choose(name)
        assert native.isa() == name
        assert loader.module() is native


def test_off_is_until_something_else_is_chosen(native: ModuleType) -> None:
    loader.choose("off")
    assert loader.module() is None
    assert loader.why_not() == "turned off by option 'native'"
    loader.choose("portable")
    assert loader.module() is native
    assert loader.why_not() == ""


def test_a_set_that_is_not_here_is_refused_and_changes_nothing(native: ModuleType) -> None:
    loader.choose("portable")
    with pytest.raises(ConfigError, match="asks for 'sve9', but this build and processor have only portable"):
        loader.choose("sve9")
    assert native.isa() == "portable"


def test_without_kernels_only_a_set_by_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_load", lambda: (None, "not built: a reason"))
    loader.choose("auto")
    loader.choose("off")
    with pytest.raises(ConfigError, match=r"have no native kernels \(not built: a reason\)"):
        loader.choose("portable")


def test_the_engine_applies_it(native: ModuleType) -> None:
    with Engine(tiny_model(), num_blocks=8, native="off"):
        assert loader.module() is None
    with Engine(tiny_model(), num_blocks=8):
        assert loader.module() is native


def _load_without(monkeypatch: pytest.MonkeyPatch, error: str, spec: object) -> str:
    def refuse(name: str) -> ModuleType:
        raise ImportError(error)

    monkeypatch.setattr(loader, "import_module", refuse)
    monkeypatch.setattr(loader, "_share_openmp", lambda: None)
    monkeypatch.setattr(loader, "find_spec", lambda name: spec)
    module, reason = loader._load.__wrapped__()
    assert module is None
    return reason


def test_what_is_missing_to_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(loader.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    reason = _load_without(monkeypatch, "no such module", None)
    assert reason.startswith("not built: get a C++ compiler (package g++) and Python's headers (package python3-dev), ")
    monkeypatch.setattr(loader, "missing_to_build", list)
    assert "although a C++ compiler is here" in _load_without(monkeypatch, "no such module", None)


def test_a_module_that_can_not_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _load_without(monkeypatch, "libgomp.so.1 is missing", object()) == "can't be loaded: libgomp.so.1 is missing"
