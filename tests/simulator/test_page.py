"""The page: well formed, complete in itself, and with the numbers of the comparison."""

from html.parser import HTMLParser

import pytest

from kvpager.errors import ConfigError
from kvpager.simulator.comparison import Asked, Row, compare
from kvpager.simulator.concurrent import Service
from kvpager.simulator.page import replay_page
from kvpager.simulator.trace import Trace
from tests.simulator.forest import random_trace

_VOID = {"meta"}


class _Reader(HTMLParser):
    """Checks that every element is closed in turn; keeps texts, and whatever could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.counts: dict[str, int] = {}
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [name for name, _ in attrs if name in ("src", "href", "xlink:href", "data", "action", "onload")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def trace() -> Trace:
    return random_trace(1)


@pytest.fixture(scope="module")
def rows(trace: Trace) -> list[Row]:
    asked = Asked(
        ("lru", "min"),
        capacities=(("9", 9), ("30", 30)),
        tiers=(("device", 9), ("host", 20)),
        exact_at=30,
    )
    return compare(trace, asked)


def test_it_is_well_formed_and_loads_nothing(trace: Trace, rows: list[Row]) -> None:
    page = replay_page(trace, rows, 30)
    reader = read(page)
    assert reader.loads == []
    assert "http" not in page
    assert "url(" not in page
    assert "script" not in reader.counts
    assert "prefers-color-scheme: dark" in page


def test_it_holds_the_numbers(trace: Trace, rows: list[Row]) -> None:
    reader = read(replay_page(trace, rows, 30))
    text = " ".join(reader.texts)
    for row in rows:
        assert f"{row.result.whole.ratio:.1%}" in text
        if row.of_optimum is not None:
            assert f"{row.of_optimum:.1%}" in text
    lru = next(row for row in rows if row.label == "30" and row.result.policy == "lru")
    assert f"lru at 30: {lru.result.whole.ratio:.1%}" in text
    tiered = next(row for row in rows if row.is_tiered and row.result.policy == "lru")
    for level in tiered.result.levels:
        assert f"lru, {level.name}: {level.hits.ratio:.1%}" in text
    assert f"{tiered.result.levels[1].stored:,}" in text


def test_it_marks_where_you_are_and_shows_the_ages_there(trace: Trace, rows: list[Row]) -> None:
    here = read(replay_page(trace, rows, 30))
    text = " ".join(here.texts)
    assert "you are here: 30" in text
    assert "lru at 30" in text
    assert "of evictions" in text
    nowhere = " ".join(read(replay_page(trace, rows)).texts)
    assert "you are here" not in nowhere


def test_names_are_escaped(rows: list[Row]) -> None:
    from dataclasses import replace

    named = replace(random_trace(1), name="<b>&\"'")
    reader = read(replay_page(named, rows))
    assert "b" not in reader.counts
    assert "<b>&\"'" in reader.texts


def test_overlapping_requests_and_a_single_capacity_have_a_page_too(trace: Trace) -> None:
    asked = Asked(("lru", "min"), capacities=(("9", 9),), service=Service(10.0, 0.1))
    assert "Requests overlap" in " ".join(read(replay_page(trace, compare(trace, asked))).texts)


def test_nothing_to_replay_and_unknown_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to replay"):
        Asked(("lru",))
    with pytest.raises(ConfigError, match="unknown eviction policy 'lfoo'"):
        Asked(("lfoo",), capacities=(("9", 9),))
