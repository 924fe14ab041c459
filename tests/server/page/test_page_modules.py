"""Modules of the page one by one, in the browser: what is bounded stays bounded, and goes back exactly."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.server.page.browser import Browser
from tests.server.page.conftest import Served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here(browser: Browser, still: Served) -> Browser:
    browser.open(f"{still.url}/page/icon.svg")
    return browser


def text(column: np.ndarray) -> str:
    return base64.b64encode(column.tobytes()).decode()


def frame(columns: dict[str, np.ndarray], at: np.ndarray | None, seq: int) -> dict[str, Any]:
    chosen = columns if at is None else {name: column[at] for name, column in columns.items()}
    blocks: dict[str, Any] = {"full": at is None, **{name: text(column) for name, column in chosen.items()}}
    if at is not None:
        blocks |= {"at": text(at.astype(np.uint32)), "since": seq - 1}
    return {"seq": seq, "time": float(seq), "blocks": blocks}


def test_every_moment_of_the_past_comes_back_exactly(here: Browser) -> None:
    """Random changes, many more frames than between two full ones; every fifth is compared, and all that was kept."""
    random = np.random.default_rng(3)
    count = 500
    columns = {
        "state": random.integers(0, 4, count).astype(np.uint8),
        "owner": random.integers(0, 60000, count).astype(np.uint16),
        "mappings": random.integers(0, 9, count).astype(np.uint8),
        "tokens": random.integers(0, 33, count).astype(np.uint8),
    }
    frames, truth = [], []
    for seq in range(150):
        at = None if seq == 0 else np.flatnonzero(random.random(count) < 0.05)
        if at is not None:
            for column in columns.values():
                column[at] = random.integers(0, 4, len(at))
        frames.append(frame(columns, at, seq))
        truth.append([columns["state"].tolist(), columns["owner"].tolist(), columns["tokens"].tolist()])
    script = """(async () => {
      const { decodeFrame, Memory } = await import('/page/js/frame.js');
      const history = new page.History(%d);
      const memory = new Memory();
      for (const each of %s) { const frame = decodeFrame(each); memory.apply(frame); history.push(frame, memory); }
      const past = [];
      for (let n = history.first; n <= history.last; n++) {
        const then = history.rebuild(n, new Memory());
        past.push([n, [[...then.state], [...then.owner], [...then.filled]]]);
      }
      return { past, bytes: history.bytes, found: history.numberAt(100.4), first: history.meta(history.first).time };
    })()"""
    everything = here.page(script % (64 << 20, json.dumps(frames)), "history.js")
    assert [number for number, _ in everything["past"]] == list(range(150))
    assert all(truth[number] == then for number, then in everything["past"])
    assert everything["found"] == 100
    budget = 150_000
    bounded = here.page(script % (budget, json.dumps(frames)), "history.js")
    assert bounded["bytes"] <= budget
    numbers = [number for number, _ in bounded["past"]]
    assert 0 < numbers[0] < numbers[-1] == 149
    assert bounded["first"] == numbers[0]
    assert all(truth[number] == then for number, then in bounded["past"])


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_events_come_out_whole_however_they_are_cut(here: Browser, size: int) -> None:
    sent = 'event: frame\r\ndata: {"a": "ü"}\r\n\r\n: ping\r\n\r\n'
    sent += "data: one\ndata: two\n\nevent: gone\ndata:x\n\ndata: cut off"
    script = """(async () => {
      const bytes = new TextEncoder().encode(%s);
      const body = new ReadableStream({ start(to) {
        for (let i = 0; i < bytes.length; i += %d) to.enqueue(bytes.slice(i, i + %d));
        to.close();
      } });
      const events = [];
      for await (const { event, data } of page.readEvents(body)) events.push([event, data]);
      return events;
    })()"""
    events = here.page(script % (json.dumps(sent), size, size), "sse.js")
    assert events == [["frame", '{"a": "ü"}'], ["ping", ""], ["message", "one\ntwo"], ["gone", "x"]]


def test_numbers_are_written_for_people(here: Browser) -> None:
    script = """[page.bytes(0), page.bytes(1536), page.bytes(123 * 2 ** 30), page.percent(0.0123), page.percent(1),
      page.percent(null), page.rate(9.94), page.rate(1234.5), page.seconds(0.0004), page.seconds(0.25),
      page.seconds(61), page.duration(3700), page.count(undefined), page.many(1, 'page'), page.many(2, 'page'),
      page.shortId('chatcmpl-0123456789abcdef')]"""
    assert here.page(script, "format.js") == [
        "0 B", "1.5 KiB", "123 GiB", "1.2 %", "100 %",
        "–", "9.9", "1,235", "400 µs", "250 ms",
        "61 s", "1 h 1 min", "–", "1 page", "2 pages",
        "chatcmpl-…89abcdef",
    ]  # fmt: skip


def test_an_owner_keeps_its_colour_and_sessions_differ(here: Browser) -> None:
    script = """(() => {
      const colouring = new page.Colouring();
      const owner = (owner, session) => ({ owner, session, request: `r${owner}` });
      const first = [1, 2, 3].map((n) => owner(n, `s${n % 2}`));
      colouring.learn(first);
      const before = [1, 2, 3].map((n) => colouring.ofOwner[n]);
      colouring.learn([owner(3, 's1'), owner(65535, 's5')]);
      const after = [1, 2, 3].map((n) => colouring.ofOwner[n]);
      colouring.setMode('session');
      colouring.learn(first);
      const sessions = [1, 2, 3].map((n) => colouring.ofOwner[n]);
      const many = Array.from({ length: page.NUM_COLOURS }, (_, n) => owner(100 + n, `session ${n}`));
      const fresh = new page.Colouring();
      fresh.setMode('session');
      fresh.learn(many);
      return [before, after, sessions, new Set(many.map((each) => fresh.ofOwner[each.owner])).size, page.NUM_COLOURS];
    })()"""
    before, after, sessions, distinct, total = here.page(script, "palette.js")
    assert before == after == [1, 2, 3]
    assert sessions[0] == sessions[2] != sessions[1]
    assert distinct == total, "as many sessions as colours: none is used twice"
