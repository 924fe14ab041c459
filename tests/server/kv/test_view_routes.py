"""The routes of the memory page, through a real server: frames as they stream, tables, history, trace."""

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from rich.console import Console

from kvpager.cli.top_lines import format_line, summary
from kvpager.cli.top_source import FrameSource, read_address
from kvpager.cli.top_view import TopView
from kvpager.engine.engine import Engine
from kvpager.engine.sampling_params import Sampling
from kvpager.memory.block import BlockState
from kvpager.metrics.alerts import Alert, Alerts
from kvpager.metrics.frames import Frame, read_frame
from kvpager.server.answer import Ask
from kvpager.server.kv.frame_feed import INTERVAL, MAX_WATCHERS, FrameFeed
from kvpager.server.tenant import Tenant
from tests.server.serving import Serving, serving

SECRET = "a marker that nobody else would write"
ROUTES = [
    "/v1/kv/stream",
    "/v1/kv/frame",
    "/v1/kv/tables",
    "/v1/kv/history",
    "/v1/kv/trace",
    "/v1/kv/follow?block=0",
]


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[Serving]:
    with serving(model, num_blocks=128) as opened:
        yield opened


@contextmanager
def generating(server: Serving) -> Iterator[None]:
    """Two requests run all the while, at a leisurely pace."""
    thread = server.service.thread
    loop = thread._loop
    assert loop is not None
    thread.before_turn = lambda engine: time.sleep(0.04)
    sampling = Sampling(max_tokens=400, temperature=0, ignore_eos=True)
    asks = [Ask(f"{SECRET} {number}", sampling, label=f"cmpl-{number}") for number in range(2)]
    answers = [asyncio.run_coroutine_threadsafe(thread.submit(ask), loop).result(30) for ask in asks]
    try:
        yield
    finally:
        for answer in answers:
            loop.call_soon_threadsafe(answer.cancel)
        thread.before_turn = None
        assert eventually(lambda: not server.engine.has_work)


def frames(response: httpx.Response) -> Iterator[tuple[Frame, bool]]:
    """As they come, and whether each was sent whole."""
    frame: Frame | None = None
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            assert name == "frame"
            text = line.removeprefix("data: ")
            frame = read_frame(text, frame)
            yield frame, json.loads(text)["blocks"]["full"]


def states(frame: Frame) -> dict[str, int]:
    found = np.bincount(frame.blocks.state, minlength=len(BlockState))
    return {state.name.lower(): int(found[state]) for state in BlockState}


def feed_of(server: Serving) -> FrameFeed:
    feed: FrameFeed = server.app.state.frame_feed
    return feed


def eventually(is_so: Callable[[], bool]) -> bool:
    stop_at = time.monotonic() + 60
    while not is_so() and time.monotonic() < stop_at:
        time.sleep(0.01)
    return is_so()


def test_a_stream_begins_whole_and_goes_on_with_changes_that_add_up(client: httpx.Client, server: Serving) -> None:
    sent_whole = []
    with generating(server), client.stream("GET", "/v1/kv/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for frame, is_whole in frames(response):
            sent_whole.append(is_whole)
            pool = frame.figures["pool"]
            assert states(frame) == {name: pool[name] for name in ("free", "used", "cached", "moving")}
            assert pool["shared"] == int((frame.blocks.mappings > 1).sum())
            if len(sent_whole) == 8:
                break
    assert sent_whole[0]
    assert not all(sent_whole)


def test_owners_of_a_frame_are_the_owners_of_its_blocks(client: httpx.Client, server: Serving) -> None:
    with generating(server), client.stream("GET", "/v1/kv/stream") as response:
        frame = next(frame for frame, _ in frames(response) if frame.figures["pool"]["used"])
    owners = frame.figures["owners"]
    mapped = np.bincount(frame.blocks.owner, minlength=70000)
    for owner in owners:
        unshared = owner["pages"] - owner["shared_pages"]
        assert unshared <= mapped[owner["owner"]] <= owner["pages"]
    assert {int(number) for number in np.unique(frame.blocks.owner)} - {0} <= {owner["owner"] for owner in owners}


def test_a_frame_shows_no_text_and_the_trace_neither(client: httpx.Client, server: Serving) -> None:
    with generating(server), client.stream("GET", "/v1/kv/stream") as response:
        for frame, _ in frames(response):
            if frame.figures["owners"]:
                break
        shown = [client.get(route).text for route in ROUTES[1:]]
    for text in [*shown, json.dumps(frame.figures)]:
        assert "marker" not in text
    assert '"prompt_tokens"' in shown[0]


def test_frames_are_taken_only_while_somebody_watches_and_once_for_all(client: httpx.Client, server: Serving) -> None:
    client.get("/v1/kv/frame")
    feed = feed_of(server)
    with ExitStack() as stack:
        watching = [frames(stack.enter_context(client.stream("GET", "/v1/kv/stream"))) for _ in range(3)]
        before = feed.num_taken
        seen = [next(each)[0].seq for each in watching]
        assert feed.num_watchers == 3
        assert max(seen) - min(seen) <= feed.num_taken - before + 1
    assert eventually(lambda: feed.num_watchers == 0 and feed._taking is None)
    taken = feed.num_taken
    time.sleep(0.6)
    assert feed.num_taken == taken


def test_there_is_an_end_to_how_many_may_watch(client: httpx.Client, server: Serving) -> None:
    with ExitStack() as stack:
        watching = [frames(stack.enter_context(client.stream("GET", "/v1/kv/stream"))) for _ in range(MAX_WATCHERS)]
        for each in watching:
            next(each)
        refused = client.get("/v1/kv/stream")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_watchers"
        assert refused.headers["retry-after"]
    assert eventually(lambda: feed_of(server).num_watchers == 0)
    with client.stream("GET", "/v1/kv/stream") as response:
        assert next(frames(response))[1]


@pytest.mark.parametrize("route", ROUTES)
def test_only_an_operator_may_look(route: str, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = Tenant("somebody", "salt", is_operator=False)
    monkeypatch.setattr("kvpager.server.tenant.tenant_of", lambda request: somebody)
    answer = client.get(route)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "operator_only"


def test_tables_show_where_each_page_lies(client: httpx.Client, server: Serving) -> None:
    with generating(server):
        assert eventually(lambda: bool(client.get("/v1/kv/tables").json()["tables"]))
        shown = client.get("/v1/kv/tables").json()
        few = client.get("/v1/kv/tables", params={"limit": 1}).json()
    for row in shown["tables"]:
        assert [page["page"] for page in row["pages"]] == list(range(row["num_pages"]))
        assert all(page["filled"] == shown["page_size"] for page in row["pages"][:-1])
        assert all(page["tier"] == "device" and page["block"] is not None for page in row["pages"])
    assert sum(len(row["pages"]) for row in few["tables"]) <= 1
    assert sum(row["num_pages"] for row in few["tables"]) - few["left_out"] <= 1


def test_the_past_can_be_read_back_and_thinned(client: httpx.Client, server: Serving) -> None:
    with generating(server), client.stream("GET", "/v1/kv/stream") as response:
        seen = [frame for _, (frame, _) in zip(range(6), frames(response), strict=False)]
        texts = client.get("/v1/kv/history", params={"seconds": 60}).json()["frames"]
        few = client.get("/v1/kv/history", params={"seconds": 60, "frames": 2}).json()["frames"]
    past: dict[int, Frame] = {}
    frame: Frame | None = None
    for text in texts:
        frame = read_frame(json.dumps(text), frame)
        past[frame.seq] = frame
    for each in seen[:-1]:
        assert past[each.seq].blocks.is_same(each.blocks)
    assert len(few) == 2
    assert few[-1]["seq"] >= seen[-1].seq
    assert few[0]["blocks"]["full"]


def test_a_page_can_be_followed(client: httpx.Client, server: Serving) -> None:
    def computed() -> Frame:
        return read_frame(client.get("/v1/kv/frame").text)

    with generating(server):
        assert eventually(lambda: bool((computed().blocks.mappings > 0).any()))
    assert eventually(lambda: bool((computed().blocks.state == BlockState.CACHED).any()))
    blocks = computed().blocks
    cached = int(np.flatnonzero(blocks.state == BlockState.CACHED)[0])
    free = int(np.flatnonzero(blocks.state == BlockState.FREE)[0])
    seen = client.get("/v1/kv/follow", params={"block": cached}).json()
    assert (seen["state"], len(seen["key"])) == ("cached", 16)
    assert {stop["what"] for stop in seen["journey"]} & {"stored: published", "released"}
    assert all(stop["tier"] == "device" and abs(stop["time"] - time.time()) < 600 for stop in seen["journey"])
    seen = client.get("/v1/kv/follow", params={"block": free}).json()
    assert (seen["state"], seen["key"], seen["journey"]) == ("free", None, [])


def test_top_reads_the_stream(client: httpx.Client, server: Serving) -> None:
    source = FrameSource(read_address(server.url), None)
    with generating(server):
        stream = source.frames()
        seen = [next(stream), next(stream)]
        stream.close()
    assert seen[1].seq > seen[0].seq
    for frame in (*seen, source.latest()):
        console = Console(file=io.StringIO(), width=120, height=50)
        console.print(TopView(frame))
        assert f"{frame.figures['pool']['free']} free = 128" in "\n".join(summary(frame))
        assert format_line(frame)


def test_the_stream_ends_with_the_engine(model: str) -> None:
    def die(engine: Engine) -> None:
        raise MemoryError("the device is gone")

    with serving(model, num_blocks=8) as own:
        with httpx.stream("GET", f"{own.url}/v1/kv/stream", timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: frame"
            own.service.thread.before_turn = die
            names = [line for line in lines if line.startswith(("event:", "data:"))]
        assert names[-2] == "event: gone"
        assert json.loads(names[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert httpx.get(f"{own.url}/v1/kv/frame", timeout=60).status_code == 503


def test_alerts_that_fire_are_in_the_frames(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    alert = Alert("MemoryClose", "critical", "close to the limit", 1000.0, "97 %")
    monkeypatch.setattr(Alerts, "firing", property(lambda self: (alert,)))
    time.sleep(INTERVAL)  # the frame before may be given again until then
    assert client.get("/v1/kv/frame").json()["alerts"] == [alert.as_dict()]


@pytest.mark.parametrize(
    ("route", "parameters"),
    [
        ("history", {"seconds": 0}),
        ("history", {"seconds": "nan"}),
        ("history", {"frames": 10**9}),
        ("tables", {"limit": 10**9}),
        ("tables", {"owner": -1}),
        ("follow", {"block": -1}),
        ("follow", {"block": 128}),
        ("follow", {}),
        ("trace", {"seconds": -5}),
    ],
)
def test_parameters_have_bounds(route: str, parameters: dict[str, Any], client: httpx.Client) -> None:
    assert client.get(f"/v1/kv/{route}", params={"block": 127}).status_code == 200
    answer = client.get(f"/v1/kv/{route}", params=parameters)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(parameters), "block")


def test_the_trace_has_a_track_for_each_request(client: httpx.Client, server: Serving) -> None:
    with generating(server), client.stream("GET", "/v1/kv/stream") as response:
        seen = [frame for _, (frame, _) in zip(range(4), frames(response), strict=False)]
        answer = client.get("/v1/kv/trace")
    labels = {owner["request"] for frame in seen[:-1] for owner in frame.figures["owners"]}
    assert labels
    tracks = {event["args"]["name"] for event in answer.json()["traceEvents"] if event["name"] == "thread_name"}
    assert {f"{label} [0]" for label in labels} <= tracks
    assert "attachment" in answer.headers["content-disposition"]
