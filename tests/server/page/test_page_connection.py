"""What the page says of its connection, in words, and that it finds its way back by itself."""

from pathlib import Path

import pytest

from kvpager.config.server_options import ServerOptions
from tests.server.page.browser import Browser
from tests.server.page.conftest import Served
from tests.server.page.fake_feed import Feed, serving_feed
from tests.server.page.fake_memory import FakeMemory
from tests.server.serving import serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (401, "unauthorised", "operator"),
        (503, "gone", "the engine is draining"),
        (500, "reconnecting", "next try in"),
    ],
)
def test_what_stands_in_the_way_is_told(browser: Browser, moving: Served, status: int, state: str, words: str) -> None:
    moving.feed.status = status
    moving.feed.reason = "the engine is draining" if status == 503 else ""
    browser.open(moving.url)
    browser.until(lambda: browser.run("return document.querySelector('#connection').dataset.state") == state)
    browser.until(lambda: words in browser.text("#connection-words"))
    moving.feed.status = 200
    browser.until_live()


def test_a_lost_line_comes_back_and_the_past_stays(browser: Browser, moving: Served) -> None:
    browser.open(moving.url)
    browser.until_live()
    frames = browser.page("page.history.last")
    moving.feed.status = 500
    browser.until(lambda: "lost" in browser.text("#connection-words"))
    moving.feed.status = 200
    browser.until(lambda: browser.text("#connection-words") == "live")
    browser.until(lambda: browser.page("page.history.last") > frames)
    assert browser.page("page.history.first") == 0


def test_a_server_that_is_gone_and_one_in_its_place(browser: Browser) -> None:
    """The new process has another memory: the page forgets the old one."""
    first = Feed(FakeMemory(300), interval=0.1)
    with serving_feed(first) as url:
        browser.open(url)
        browser.until_live()
    browser.until(lambda: browser.text("#connection-words") != "live")
    port = int(url.rsplit(":", 1)[1])
    second = Feed(FakeMemory(400, uptime=1.0), interval=0.1, num_past=0)
    with serving_feed(second, port=port):
        browser.until(lambda: browser.text("#connection-words") == "live")
        browser.until(lambda: browser.page("page.view().memory.count") == 400)
        assert browser.page("page.history.meta(page.history.first).pool.blocks") == 400


def test_with_a_key_in_use_the_browser_asks_for_it_once(browser: Browser, model: str, tmp_path: Path) -> None:
    key = "k" * 24
    file = tmp_path / "keys"
    file.write_text(f"ops {key} operator\n")
    file.chmod(0o600)
    with serving(model, server=ServerOptions(port=0, api_keys=file)) as served:
        browser.open(served.url.replace("//", f"//ops:{key}@"))
        browser.until_live()
        browser.find("#chat-text").send_keys("the moon")
        browser.find("#chat-form button").click()
        browser.until(lambda: "out" in browser.text("#chat-log .meter"))
        assert browser.faults() == []
        kept = browser.run("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert kept == '[{},{},""]', "the page keeps no key"
        browser.leave()
