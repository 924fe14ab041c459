"""Which backend is taken, and what is said about the others."""

import sys

import pytest

from kvpager import ConfigError, KVLayout
from kvpager.attention import backends, select
from kvpager.attention.reference import ReferenceBackend

LAYOUT = KVLayout(1, 1, 8)
module = sys.modules["kvpager.attention.select"]


def entry(reason: str) -> object:
    return module._Entry(ReferenceBackend, lambda layout: reason)


def test_every_backend_is_listed_best_first_and_the_reference_is_last_and_always_works() -> None:
    found = backends(LAYOUT)
    assert [each.name for each in found][-1] == "reference"
    assert found[-1].is_available
    assert found[-1].reason == ""


def test_auto_takes_the_first_that_works() -> None:
    first = next(each for each in backends(LAYOUT) if each.is_available)
    assert select(LAYOUT).name == select(LAYOUT, "auto").name == select().name == first.name


def test_a_backend_is_taken_by_name() -> None:
    for each in backends(LAYOUT):
        if each.is_available:
            assert select(LAYOUT, each.name).name == each.name


def test_an_unknown_name_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown attention backend 'flesh'; choose 'auto' or one of .*reference"):
        select(LAYOUT, "flesh")


def test_a_backend_that_does_not_work_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKENDS", {"fast": entry("no CUDA device"), "reference": entry("")})
    assert [(each.name, each.reason) for each in backends()] == [("fast", "no CUDA device"), ("reference", "")]
    assert select().name == "reference"
    with pytest.raises(ConfigError, match="fast: no CUDA device"):
        select(name="fast")


def test_where_nothing_works_every_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKENDS", {"fast": entry("no CUDA device"), "slow": entry("no patience")})
    with pytest.raises(ConfigError, match="fast: no CUDA device; slow: no patience"):
        select()


def test_a_backend_may_refuse_a_layout_and_take_another(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = module._Entry(
        ReferenceBackend, lambda layout: "" if layout is None or layout.page_size == 16 else "page size"
    )
    monkeypatch.setattr(module, "_BACKENDS", {"picky": picky})
    assert select(KVLayout(1, 1, 8, page_size=16)).name == "reference"
    with pytest.raises(ConfigError, match="picky: page size"):
        select(KVLayout(1, 1, 8, page_size=8))
