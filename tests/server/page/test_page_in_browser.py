"""The page in a real browser, over a memory that is made up: what it shows is what the frames say."""

from itertools import combinations

import numpy as np
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.server.page.browser import Browser
from tests.server.page.conftest import Served
from tests.server.page.fake_memory import CACHED, FREE, PAGE_SIZE, USED

pytestmark = pytest.mark.slow


def opened(browser: Browser, served: Served, **options: object) -> None:
    browser.open(served.url, **options)  # type: ignore[arg-type]
    browser.until_live()


def test_it_loads_without_a_fault_and_draws_every_block(browser: Browser, still: Served) -> None:
    opened(browser, still)
    assert browser.faults() == []
    memory = still.feed.memory
    shown = browser.page("[...page.view().memory.owner]")
    assert shown == memory.owner.tolist()
    browser.until(lambda: browser.text("#map-caption").startswith("2,000 blocks of 32 tokens"))
    browser.until(lambda: browser.text("#model") == "SmolLM2-360M-Instruct")  # it is asked for beside the frames
    # Positive: a fault is seen.
    browser.run("document.body.setAttribute('style', 'color: red')")
    browser.until(lambda: any("style-src" in fault for fault in browser.faults()))


def test_hovering_shows_whose_page_it_is(browser: Browser, still: Served) -> None:
    opened(browser, still)
    memory = still.feed.memory
    by_owner = {branch.owner: branch for branch in memory.branches}
    used = int(np.flatnonzero((memory.state == USED) & (memory.mappings == 1))[40])
    shared = int(np.flatnonzero((memory.state == USED) & (memory.mappings > 1))[0])
    for block in (used, shared):
        browser.point_at(block)
        browser.until(lambda block=block: f"Block {block:,}" in browser.text("#tip"))
        branch = by_owner[int(memory.owner[block])]
        tip = browser.text("#tip")
        assert branch.request[-8:] in tip
        assert branch.session in tip
        assert f"{memory.tokens[block]} of {PAGE_SIZE}" in tip
        assert ("shared" in tip) == (block == shared)
        count = int(memory.mappings[block])
        assert f"{count} page table{'s' if count > 1 else ''}" in tip
    free = int(np.flatnonzero(memory.state == FREE)[5])
    browser.point_at(free)
    browser.until(lambda: "free" in browser.text("#tip"))
    assert "owner" not in browser.text("#tip")


def test_pixels_are_the_colour_of_the_owner(browser: Browser, still: Served) -> None:
    opened(browser, still)
    memory = still.feed.memory
    full = np.flatnonzero((memory.state == USED) & (memory.mappings == 1) & (memory.tokens == PAGE_SIZE))
    pixel = """(() => { const c = page.map.centreOf(%d);
      return [...document.querySelector('#map-canvas').getContext('2d').getImageData(c.x, c.y, 1, 1).data]; })()"""
    colours = {}
    for block in full[:24].tolist():
        colours.setdefault(int(memory.owner[block]) % 21, set()).add(tuple(browser.page(pixel % block)))
    assert all(len(each) == 1 for each in colours.values()), "an owner has one colour"
    assert len(set.union(*colours.values())) == len(colours) > 3, "owners differ in colour"
    grey = browser.page(pixel % int(np.flatnonzero(memory.state == CACHED)[0]))
    assert max(grey[:3]) - min(grey[:3]) < 20
    free = browser.page(pixel % int(np.flatnonzero(memory.state == FREE)[0]))
    assert free[:3] == [255, 255, 255]


def test_a_click_follows_a_page_through_the_tiers(browser: Browser, still: Served) -> None:
    opened(browser, still)
    browser.point_at(130)
    ActionChains(browser.driver).click().perform()
    browser.until(lambda: browser.run("return document.querySelectorAll('.journey li').length") == 3)
    assert "Block 130" in browser.text("#inspector")
    assert f"{130:016x}" in browser.text("#inspector")
    steps = browser.run("return [...document.querySelectorAll('.journey li span')].map((each) => each.textContent)")
    assert steps == ["device came back", "host copied", "device written"]
    browser.find("#sheet").send_keys(Keys.ESCAPE)
    browser.until(lambda: browser.run("return document.querySelectorAll('.journey li').length") == 0)


def test_the_keyboard_reaches_every_block(browser: Browser, still: Served) -> None:
    opened(browser, still)
    sheet = browser.find("#sheet")
    columns = browser.page("page.map.columns")
    sheet.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    browser.until(lambda: browser.text("#map-spoken").startswith(f"Block {columns + 1},"))
    sheet.send_keys(Keys.END)
    browser.until(lambda: browser.text("#map-spoken").startswith("Block 1999,"))
    sheet.send_keys(Keys.ARROW_DOWN)
    assert browser.text("#map-spoken").startswith("Block 1999,")
    sheet.send_keys(Keys.ESCAPE)


def test_colour_by_session(browser: Browser, still: Served) -> None:
    opened(browser, still)
    count = "new Set([...document.querySelectorAll('#request-rows .swatch')].map((each) => each.style.background)).size"
    browser.run("document.querySelector('#requests').scrollIntoView()")
    browser.until(lambda: browser.run(f"return {count}") > 9)
    browser.run("document.querySelector('[data-colour=session]').click()")
    sessions = {branch.session for branch in still.feed.memory.branches}
    browser.until(lambda: browser.run(f"return {count}") == len(sessions))


def test_dark_and_light_persist(browser: Browser, still: Served) -> None:
    opened(browser, still, dark=False)
    theme = "return document.documentElement.dataset.theme"
    background = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)
    assert browser.run(theme) == "light"
    browser.find("#theme").click()
    assert browser.run(theme) == "dark"
    assert browser.run(background) != light
    opened(browser, still, dark=False)
    assert browser.run(theme) == "dark", "the choice is kept"
    browser.run("localStorage.clear()")
    opened(browser, still, dark=False)
    assert browser.run(theme) == "light", "without a choice it is the system's"
    opened(browser, still, dark=True)
    assert browser.run(theme) == "dark"


def test_scrubbing_goes_back_and_live_returns(browser: Browser, moving: Served) -> None:
    opened(browser, moving)
    browser.until(lambda: browser.page("page.history.last - page.history.first") > 100)
    newest = browser.page("[...page.view().memory.state]")
    browser.run(
        "const s = document.querySelector('#scrubber'); s.value = +s.min + 3; s.dispatchEvent(new Event('input'))"
    )
    browser.until(lambda: not browser.page("page.view().isLive"))
    browser.until(lambda: "ago" in browser.text("#moment"))
    assert browser.page("[...page.view().memory.state]") != newest
    shown = browser.page("page.view().meta.seq")
    last = browser.page("page.history.last")
    browser.until(lambda: browser.page("page.history.last") > last + 3)
    assert browser.page("page.view().meta.seq") == shown, "what is looked at stays"
    browser.find("#live").click()
    browser.until(lambda: browser.page("page.view().isLive && page.view().meta.seq") > shown + 50)
    browser.until(lambda: "ago" not in browser.text("#moment"))


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_parts_lie_beside_each_other(browser: Browser, still: Served, width: int) -> None:
    opened(browser, still, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    boxes = browser.boxes("main section[id], header.top")
    assert len(boxes) == 12
    for name, box in boxes.items():
        assert 0 <= box["left"] < box["right"] <= width, name
        assert box["bottom"] - box["top"] > 40, name
    for (name, a), (other, b) in combinations(boxes.items(), 2):
        is_apart = (
            a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]
        )
        assert is_apart, f"{name} and {other} overlap"
    canvas = browser.run(
        "const b = document.querySelector('#map-canvas').getBoundingClientRect(); return [b.left, b.right, b.height]"
    )
    assert 0 <= canvas[0] < canvas[1] <= width
    assert canvas[2] > 150
    assert boxes["map"]["top"] < 500, "the map is seen first"


def test_page_tables_are_asked_for_only_while_in_view(browser: Browser, still: Served) -> None:
    opened(browser, still)
    asked = (
        "return performance.getEntriesByType('resource').filter((each) => each.name.includes('/v1/kv/tables')).length"
    )
    assert browser.run(asked) == 0
    browser.run("document.querySelector('#tables').scrollIntoView({behavior: 'instant'})")
    browser.until(lambda: browser.run(asked) >= 2)
    browser.until(lambda: browser.page("page.tables.rows.length") == len(still.feed.memory.branches))
    rows = browser.page("page.tables.rows.map((row) => [row.owner, row.parent, row.depth])")
    order = [row[0] for row in rows]
    forks = [row for row in rows if row[1] is not None and row[1] in order]
    assert forks, "the made-up memory has forks"
    assert all(row[2] == 1 and order.index(row[1]) < order.index(row[0]) for row in forks)
