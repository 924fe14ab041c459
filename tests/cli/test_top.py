"""``kvpager top``: against a server of our own that sends what we like; the picture is drawn on a recorded console."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvpager.cli import top
from kvpager.cli.top_lines import format_line, summary
from kvpager.cli.top_source import Address, FrameSource, ServerAway, read_address
from kvpager.cli.top_view import LiveTop, TopView, map_lines, paint_of_cells, recent_of
from kvpager.metrics.block_view import BlockView
from kvpager.metrics.frames import Frame
from tests.cli.conftest import Call

OWNER = {
    "owner": 3,
    "request": "cmpl-abc",
    "session": "",
    "choice": 0,
    "state": "running",
    "prompt_tokens": 10,
    "tokens": 14,
    "generated": 5,
    "max_tokens": 20,
    "pages": 4,
    "shared_pages": 1,
    "pages_below": 0,
    "prefix_tokens": 8,
    "preemptions": 0,
    "is_slow": False,
    "attention": "exact",
    "age": 1.5,
}
TIER = {
    "name": "device",
    "kind": "device",
    "capacity_bytes": 8192,
    "used_bytes": 6144,
    "pages": 6,
    "evicted": 2,
    "hit_tokens": 8,
    "state": "ok",
}
FIGURES: dict[str, Any] = {
    "seq": 1,
    "time": 1000.0,
    "uptime": 12.0,
    "model": "tiny",
    "pool": {
        "blocks": 8,
        "page_size": 4,
        "block_bytes": 1024,
        "free": 2,
        "used": 4,
        "cached": 1,
        "moving": 1,
        "shared": 1,
    },
    "owners": [OWNER],
    "owners_left_out": 0,
    "waiting": 2,
    "running": 1,
    "finished": 9,
    "tiers": [TIER, {**TIER, "name": "host", "capacity_bytes": 0, "state": "failing since 3 s"}],
    "prefix": {"prompt_tokens": 40, "hit_tokens": 10, "by_tier": {"device": 10}},
    "faults": {kind: {"pages": 7, "seconds": 0.1} for kind in ("demand", "minor", "major", "copy_on_write")},
    "migrations": [{"tier": "host", "demoted": 6, "promoted": 5}],
    "preemptions": 3,
    "evictions": 2,
    "rates": {"tokens_per_second": 88.25, "hit_rate": 0.25, "faults_per_second": 1.5},
    "contiguous": {
        "paged_used_bytes": 4096,
        "paged_waste_share": 0.125,
        "reserved_bytes": 30720,
        "reserved_waste_share": 0.5,
        "fits_paged": 2,
        "fits_contiguous": 1,
    },
    "activity": [{"time": 1000.0, "kind": "demand_fault", "tier": "device", "pages": 2, "seconds": 0.0, "span": 0.25}],
    "alerts": [],
}
BLOCKS = BlockView(
    state=np.array([1, 1, 1, 1, 2, 3, 0, 0], np.uint8),
    owner=np.array([3, 3, 3, 0, 0, 0, 0, 0], np.uint16),
    mappings=np.array([1, 1, 2, 1, 0, 0, 0, 0], np.uint8),
    tokens=np.array([4, 4, 4, 2, 4, 0, 0, 0], np.uint8),
)
FRAME = Frame(1, 1000.0, FIGURES, BLOCKS)
ALERT = {"name": "MemoryClose", "severity": "critical", "summary": "97 % used", "since": 990.0, "value": 0.97}


def later(frame: Frame, **figures: object) -> Frame:
    seq, time = frame.seq + 1, frame.time + 3
    return Frame(seq, time, {**frame.figures, "seq": seq, "time": time, **figures}, frame.blocks)


def event(frame: Frame, before: Frame | None = None) -> bytes:
    return b"event: frame\r\ndata: " + frame.encode(before).text.encode() + b"\r\n\r\n"


@dataclass
class Told:
    """What the server answers, one connection after the other; the last answer is given again."""

    answers: list[tuple[int, bytes]]
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, Told]]:
    told = Told(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.keys.append(self.headers["Authorization"])
            told.paths.append(self.path)
            status, body = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", told
        finally:
            server.shutdown()
            thread.join()


def error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None}}).encode()


def drawn(thing: object, *, width: int = 100, height: int = 50, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, **options)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# -- addresses and keys --------------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert read_address("http://127.0.0.1:8000/") == Address(False, "127.0.0.1", 8000, "")
    assert read_address("localhost:8000") == Address(False, "localhost", 8000, "")
    assert read_address("https://kv.example/under/") == Address(True, "kv.example", None, "/under")
    assert read_address("http://[::1]:80").shown == "http://[::1]:80"


@pytest.mark.parametrize("url", ["", "http://", "ftp://x", "http://x:99999", "http://a\x1b[31m", "http://x/?key=1"])
def test_what_is_no_address_is_refused(url: str, kvpager: Call) -> None:
    ended = kvpager("top", url, "--once")
    assert ended.code == 2
    assert "address" in ended.err
    assert "\x1b" not in ended.err


def test_the_key_comes_from_a_file_or_the_environment(
    kvpager: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-from-a-file\n")
    with answering((200, FRAME.encode().text.encode())) as (url, told):
        assert kvpager("top", url, "--once", "--key-file", str(tmp_path / "key")).code == 0
        monkeypatch.setenv("KVPAGER_API_KEY", "sk-from-outside")
        assert kvpager("top", url, "--once").code == 0
        monkeypatch.delenv("KVPAGER_API_KEY")
        assert kvpager("top", url, "--once").code == 0
    assert told.keys == ["Bearer sk-from-a-file", "Bearer sk-from-outside", None]


@pytest.mark.parametrize("content", [b"", b"two words\n", b"\xff\xfe", None])
def test_a_file_without_a_key(content: bytes | None, kvpager: Call, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    ended = kvpager("top", "http://127.0.0.1:9", "--key-file", str(tmp_path / "key"))
    assert ended.code == 2
    assert "key" in ended.err
    assert "words" not in ended.err


# -- what a server may answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, 2, "KVPAGER_API_KEY"),
        (403, 2, "operator"),
        (404, 2, "kvpager server"),
        (429, 1, "full"),
        (503, 1, "full"),
        (500, 1, "500"),
        (200, 1, "no frame"),
    ],
)
def test_refusals_say_what_to_do(status: int, code: int, says: str, kvpager: Call) -> None:
    with answering((status, error("full \x1b[31m"))) as (url, _):
        for arguments in (("--once",), () if status != 200 else ("--once", "--json")):
            ended = kvpager("top", url, *arguments)
            assert ended.code == code
            assert says in ended.err
            assert "\x1b" not in ended.err


def test_nobody_is_there(kvpager: Call) -> None:
    with answering((200, b"")) as (url, _):
        pass
    ended = kvpager("top", url)
    assert ended.code == 1
    assert "nothing answers" in ended.err


def test_a_stream_is_followed_over_changes_pings_and_its_end() -> None:
    second = later(FRAME, running=7)
    with answering((200, b": ping\r\n\r\n" + event(FRAME) + event(second, FRAME))) as (url, told):
        stream = FrameSource(read_address(url), None).frames()
        seen = [next(stream), next(stream)]
        with pytest.raises(ServerAway, match="ended the stream"):
            next(stream)
    assert [frame.figures["running"] for frame in seen] == [1, 7]
    assert all(frame.blocks.is_same(BLOCKS) for frame in seen)
    assert told.paths == ["/v1/kv/stream"]


def test_changes_to_a_frame_that_is_not_there_are_not_guessed_at() -> None:
    with answering((200, event(later(later(FRAME)), later(FRAME)))) as (url, _):
        stream = FrameSource(read_address(url), None).frames()
        with pytest.raises(ServerAway, match="not there"):
            next(stream)


class _Recorder:
    """A screen that ends the watching as Ctrl-C does, once it has seen enough."""

    def __init__(self, enough: int) -> None:
        self.frames: list[Frame] = []
        self.losses: list[str] = []
        self._enough = enough

    def show(self, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) == self._enough:
            raise KeyboardInterrupt

    def lost(self, why: str) -> None:
        self.losses.append(why)

    def __enter__(self) -> "_Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_server_that_went_away_is_tried_again_and_ctrl_c_ends(kvpager: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = _Recorder(enough=2)
    waited: list[float] = []
    monkeypatch.setattr(top, "_open_screen", lambda as_json: recorder)
    monkeypatch.setattr(top.time, "sleep", waited.append)
    gone = b"event: gone\r\ndata: " + error("the engine has failed") + b"\r\n\r\n"
    with answering((200, event(FRAME) + gone), (503, error("starting")), (200, event(FRAME))) as (url, _):
        ended = kvpager("top", url)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert len(recorder.frames) == 2
    assert "the engine has failed" in recorder.losses[0]
    assert "starting" in recorder.losses[1]
    assert waited == [0.5, 1.0]


def test_a_key_that_is_refused_later_ends_it(kvpager: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top.time, "sleep", lambda seconds: None)
    with answering((200, event(FRAME)), (401, error("no"))) as (url, _):
        ended = kvpager("top", url)
    assert ended.code == 2
    assert ended.out.startswith(format_line(FRAME))


# -- what is shown -------------------------------------------------------------------------------------------------


def test_without_a_terminal_lines_are_printed(kvpager: Call) -> None:
    with answering((200, FRAME.encode().text.encode())) as (url, _):
        plain = kvpager("top", url, "--once").out
        as_json = kvpager("top", url, "--once", "--json").out
    assert "4 used (1 shared) + 1 cached + 1 moving + 2 free = 8" in plain
    assert "cmpl-abc running, 14 tokens in 4 pages (1 shared), 5 of 20 generated" in plain
    assert "2 such requests fit, against 1" in plain
    assert json.loads(as_json) == FIGURES
    assert not any(ord(letter) < 32 for letter in plain.replace("\n", ""))


def test_a_line_has_what_matters() -> None:
    line = format_line(later(FRAME, alerts=[ALERT]))
    for part in ("1 running", "2 waiting", "88.2 tokens/s", "hit rate 25%", "CRITICAL MemoryClose: 97 % used"):
        assert part in line


def test_the_picture_has_every_part() -> None:
    shown = drawn(TopView(later(FRAME, alerts=[ALERT])))
    for part in ("tiny", "device", "host", "failing since 3 s", "CRITICAL", "cmpl-abc", "5/20", "host 6 down, 5 up"):
        assert part in shown
    assert "lost it" in drawn(TopView(FRAME, "lost it"))


def test_what_happened_lately_is_shown_for_a_while() -> None:
    frames = [later(FRAME), FRAME]
    assert "demand fault 2 (device)" in drawn(TopView(FRAME))
    assert "demand fault 4 (device)" in drawn(TopView(FRAME, recent=recent_of(frames)))


def test_nothing_that_a_client_chose_can_move_the_cursor_or_use_markup() -> None:
    bad = "\x1b[2J\r[red]x[/red]\x9b"
    owner = {**OWNER, "request": bad, "session": bad}
    frame = later(FRAME, owners=[owner], model=bad, alerts=[{**ALERT, "summary": bad}])
    for shown in (drawn(TopView(frame), width=200), "\n".join(summary(frame)), format_line(frame)):
        assert "\x1b" not in shown
        assert "\x9b" not in shown
        assert "\r" not in shown
        assert "[red]x[/red]" in shown


def test_a_map_of_small_pools_has_a_cell_for_each_block() -> None:
    assert paint_of_cells(BLOCKS, 1).tolist() == [8, 8, 3, 4, 1, 2, 0, 0]
    assert [line.plain for line in map_lines(BLOCKS, 8, 1, plain=True)] == [" DD#?:~.."]
    assert [line.plain for line in map_lines(BLOCKS, 4, 1, plain=False)] == [" ▀▀▀▀"]
    (line,) = map_lines(BLOCKS, 8, 1, plain=False)
    assert len(line.spans) == 6  # the first two cells look alike, and the last two


def test_cells_of_small_pools_are_wide() -> None:
    assert [line.plain for line in map_lines(BLOCKS, 8, 2, plain=True)] == [" DDDD##??", " ::~~...."]
    assert map_lines(BLOCKS, 100, 9, plain=True)[0].plain == " DDDDDDDD####????::::~~~~........"


@pytest.mark.parametrize("num_blocks", [1, 7, 59, 61, 1000, 100_000])
def test_a_map_fits_whatever_the_pool(num_blocks: int) -> None:
    state = np.ones(num_blocks, np.uint8)
    blocks = BlockView(state, np.full(num_blocks, 5, np.uint16), state, state)
    for plain in (True, False):
        lines = map_lines(blocks, 40, 6, plain=plain)
        assert 1 <= len(lines) <= 6
        assert all(len(line.plain) <= 41 for line in lines)


def test_a_cell_shows_what_most_of_its_blocks_are() -> None:
    state = np.array([2, 2, 1, 1, 1, 0], np.uint8)
    blocks = BlockView(state, np.array([0, 0, 5, 5, 5, 0], np.uint16), (state == 1).astype(np.uint8), state)
    assert paint_of_cells(blocks, 3).tolist() == [1, 10]


def test_the_live_view_leaves_the_terminal_as_it_was() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=30)
    with LiveTop(console) as live:
        live.show(FRAME)
        live.lost("gone")
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert written.count("\x1b[?1049h") == written.count("\x1b[?1049l") == 1
    assert "trying again" in written


def test_commands_know_it(kvpager: Call) -> None:
    assert "top " in kvpager("--help").out
    assert "--key-file" in kvpager("top", "--help").out
