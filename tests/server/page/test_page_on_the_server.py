"""The page over a real server with a tiny model: the chat box moves the memory, and what moved can be taken along."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.page.browser import Browser
from tests.server.serving import Serving, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(model: str, browser: Browser) -> Iterator[Serving]:
    with serving(model, num_blocks=192) as opened:
        yield opened
        browser.leave()  # an open stream would hold the server up


def ask(browser: Browser, text: str) -> None:
    box = browser.find("#chat-text")
    box.send_keys(text)
    browser.find("#chat-form button").click()


def test_the_chat_box_streams_and_the_map_changes(browser: Browser, served: Serving) -> None:
    browser.open(served.url)
    browser.until_live()
    before = browser.page("[...page.now.state]")
    assert len(before) == 192
    ask(browser, "why does the moon change its shape")
    browser.until(lambda: "out" in browser.text("#chat-log .meter"))
    assert browser.text("#chat-log .answer") != ""
    assert "cached" in browser.text("#chat-log .meter")
    browser.until(lambda: browser.page("[...page.now.state]") != before)
    # The page's own picture is that of the engine.
    browser.until(lambda: browser.page("page.view().meta.running") == 0)
    assert browser.faults() == []


def test_one_prefix_is_shared_by_eight(browser: Browser, served: Serving) -> None:
    browser.open(served.url)
    browser.until_live()
    browser.find("[data-quick=prefix]").click()
    meters = "return [...document.querySelectorAll('.many .meter')].map((each) => each.textContent)"
    browser.until(lambda: sum("cached" in words for words in browser.run(meters)) == 8)
    browser.until(lambda: browser.page("page.view().meta.prefix.hit_tokens") > 0)
    assert browser.faults() == []


def test_the_trace_can_be_taken_along(browser: Browser, served: Serving, tmp_path: Path) -> None:
    browser.open(served.url)
    browser.until_live()
    ask(browser, "what is a page table for")
    browser.until(lambda: "out" in browser.text("#chat-log .meter"))
    browser.until(lambda: browser.page("page.view().meta.faults.demand.pages") > 0)
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    button = browser.find("#trace")
    browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    browser.until(lambda: list(tmp_path.glob("kvpager-trace-*.json")))
    trace = json.loads(next(tmp_path.glob("kvpager-trace-*.json")).read_text())
    assert {event["ph"] for event in trace["traceEvents"]} <= set("XBEMiICbensftP")
    assert any("fault" in event["name"] for event in trace["traceEvents"]), "the question has left its marks"


def test_a_refused_question_says_why(browser: Browser, served: Serving) -> None:
    browser.open(served.url)
    browser.until_live()
    browser.run("document.querySelector('#chat-text').value = 'moon '.repeat(1500)")
    browser.find("#chat-form button").click()
    browser.until(lambda: browser.run("return document.querySelector('#chat-log .fault')?.textContent"))
    assert any(digit.isdigit() for digit in browser.text("#chat-log .fault")), "the limit is named"
    ask(browser, "the moon")
    browser.until(
        lambda: browser.run("return [...document.querySelectorAll('.meter')].at(-1).textContent").count("out")
    )
