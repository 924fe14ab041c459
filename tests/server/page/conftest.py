"""One browser, one made-up memory that stands still and one that moves, for all tests of the page."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.server.page.browser import Browser, opened_browser
from tests.server.page.fake_feed import Feed, serving_feed
from tests.server.page.fake_memory import FakeMemory


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    feed: Feed


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def still() -> Iterator[Served]:
    """Every frame is like the last one of the past."""
    feed = Feed(FakeMemory(2000), is_still=True)
    with serving_feed(feed) as url:
        yield Served(url, feed)


@pytest.fixture
def moving() -> Iterator[Served]:
    feed = Feed(FakeMemory(600), interval=0.1)
    with serving_feed(feed) as url:
        yield Served(url, feed)
