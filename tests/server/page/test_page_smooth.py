"""How long the page holds up the browser with 100,000 blocks. By hand: python -m pytest -m heavy -s tests/server/page

What counts is the processor time of each task of the page's thread, which Chromium records: what a frame takes where
nothing else runs. The time on the clock is printed beside it; on a machine that does other things it is longer.
"""

import time
from collections.abc import Iterator

import pytest

from tests.server.page.browser import Browser, opened_browser
from tests.server.page.fake_feed import Feed, serving_feed
from tests.server.page.fake_memory import FakeMemory

pytestmark = pytest.mark.heavy
_BLOCKS = 100_000
_LIMIT = 50.0  # milliseconds: what a frame may take
_SECONDS = 12.0


@pytest.fixture
def browser() -> Iterator[Browser]:
    # One for each test: Chromium records a browser's first page only.
    with opened_browser(has_trace=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_feed(Feed(FakeMemory(_BLOCKS), num_past=40)) as served:
        yield served


@pytest.mark.parametrize("where", ["map", "tables", "timeline"])
@pytest.mark.parametrize("act", ["watch", "hover", "scrub", "recolour"])
def test_no_frame_takes_over_50_ms(browser: Browser, url: str, where: str, act: str) -> None:
    browser.open(url)
    browser.until_live()
    assert browser.page("page.map.count") == _BLOCKS
    browser.run("document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", where)
    time.sleep(2)  # what is done once, on opening, is not a frame
    browser.run("performance.mark('begin')")
    browser.run("longTasks.length = 0; requestAnimationFrame(function tick() { requestAnimationFrame(tick); })")
    until = time.monotonic() + _SECONDS / 3
    while time.monotonic() < until:
        _act(browser, act)
        time.sleep(0.1)
    tasks, longest = _tasks(browser)
    walls = browser.run("return longTasks")
    print(
        f"\n{where}, {act}: {len(tasks)} tasks, processor ms: median {tasks[len(tasks) // 2]:.1f}, "
        f"99 % {tasks[int(len(tasks) * 0.99)]:.1f}, longest {longest:.1f}; "
        f"on the clock {len(walls)} over 50 ms, longest {max(walls, default=0):.0f}"
    )
    assert longest < _LIMIT


def _act(browser: Browser, act: str) -> None:
    if act == "hover":
        browser.run("""const sheet = document.querySelector('#sheet'), box = sheet.getBoundingClientRect();
          const at = { clientX: box.left + 60 + Math.random() * 700, clientY: box.top + Math.random() * 300 };
          sheet.dispatchEvent(new PointerEvent('pointermove', { ...at, bubbles: true }));""")
    elif act == "scrub":
        browser.run("""const slider = document.querySelector('#scrubber');
          slider.value = +slider.min + Math.random() * (slider.max - slider.min - 1);
          slider.dispatchEvent(new Event('input'));""")
    elif act == "recolour":
        browser.run("document.querySelector('[data-colour][aria-checked=false]').click()")


def _tasks(browser: Browser) -> tuple[list[float], float]:
    """Processor milliseconds of the tasks of the page's main thread, ascending, without those that did nothing."""
    events = browser.trace_events()
    begin = next(event for event in events if event["name"] == "begin")  # on the page's own thread
    tasks = sorted(
        event["tdur"] / 1000
        for event in events
        if event.get("ph") == "X"
        and event["name"].endswith("RunTask")
        and (event["pid"], event["tid"]) == (begin["pid"], begin["tid"])
        and event["ts"] > begin["ts"]
        and event.get("tdur", 0) > 500
    )
    assert tasks, "Chromium recorded nothing"
    return tasks, tasks[-1]
