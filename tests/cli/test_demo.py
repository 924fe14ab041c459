"""``kvpager demo``: the run, the view (on a recorded console), plain lines, and the arithmetic of the comparison."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvpager.cli.demo.command import num_blocks
from kvpager.cli.demo.comparison import Asked, Comparison, Pool, is_fuller
from kvpager.cli.demo.demonstration import Demonstration, _Rate
from kvpager.cli.demo.frame import Cell, Frame, RequestView, TierView
from kvpager.cli.demo.prompts import FULL, QUICK, DemoPrompt, Programme
from kvpager.cli.demo.screen import LiveView, PlainLines, format_progress, open_screen
from kvpager.cli.demo.view import View, letter
from kvpager.cli.session import Interruption
from kvpager.config import Options
from kvpager.engine import Engine
from kvpager.memory.block import BlockState
from kvpager.types import FaultKind
from tests.cli.tiny_model import tiny_model, tiny_tokenizer

Call = Callable[..., object]
FREE, CACHED = Cell(BlockState.FREE), Cell(BlockState.CACHED)


def _used(owner: int, mappings: int = 1) -> Cell:
    return Cell(BlockState.USED, owner, mappings)


FRAME = Frame(
    seconds=2.5,
    generated_tokens=60,
    running=3,
    running_requests=2,
    waiting=4,
    finished=1,
    expected=8,
    preemptions=5,
    faults={FaultKind.DEMAND: 11, FaultKind.MINOR: 12, FaultKind.MAJOR: 0, FaultKind.COPY_ON_WRITE: 13},
    prompt_tokens=100,
    hit_tokens=25,
    computed_tokens=135,
    reclaimed_blocks=6,
    used_blocks=4,
    cached_blocks=1,
    shared_blocks=2,
    mapped_pages=15,
    live_tokens=200,
    waste_tokens=8,
    cells=(_used(0, 3), _used(0, 12), _used(1), _used(27), CACHED, FREE),
    requests=(
        RequestView(0, "finished", 1, 20, 20, 0, "It was\nfinished."),
        RequestView(1, "running", 2, 30, 40, 16, "word " * 60 + "the last words"),
        RequestView(2, "waiting", 1, 0, 20, 0, ""),
    ),
)


def _drawn(frame: Frame, width: int = 100, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, record=True, color_system="truecolor", legacy_windows=False)
    console.print(View(frame, "tiny, 8 requests", rate=12.0))
    return console.export_text(styles=False)


# -- the view ------------------------------------------------------------------------------------------------------


def test_the_map_shows_owner_sharing_cached_and_free() -> None:
    assert " 3 9 B b ▒▒· " in _drawn(FRAME)


def test_the_map_in_a_terminal_without_unicode() -> None:
    drawn = _drawn(FRAME, encoding="ascii")
    assert " 3 9 B b ::. " in drawn
    assert "▒" not in drawn


def test_the_map_is_broken_at_the_width() -> None:
    lines = _drawn(replace(FRAME, cells=(_used(0),) * 50), width=42).splitlines()
    assert [line.count("A ") for line in lines if re.fullmatch(r" (A )+\s*", line)] == [20, 20, 10]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in _drawn(FRAME, width).splitlines()) <= width


def test_the_figures() -> None:
    drawn = _drawn(FRAME)
    for text in (
        "tiny, 8 requests",
        "2.5 s     12.0 tokens/s",
        "1/8 finished",
        "3 sequences run   4 wait",
        "4 used (2 shared) + 1 cached + 1 free",
        "demand 11   minor 12   major 0   copy on write 13",
        "25 of 100 prompt tokens found (25%)",
        "6 cached blocks reclaimed   5 preemptions",
    ):
        assert text in drawn


def test_the_tiers_have_a_line_each_and_moving_blocks_are_counted() -> None:
    host = TierView("host", 1200, 3 << 20, 64, is_ok=True)
    disk = TierView("disk", 3, 1 << 20, 0, is_ok=False)
    cells = (*FRAME.cells, Cell(BlockState.MOVING))
    drawn = _drawn(replace(FRAME, cells=cells, moving_blocks=1, tiers=(host, disk)))
    for text in (
        " 3 9 B b ▒▒· ~ ",
        "4 used (2 shared) + 1 cached + 1 moving (~) + 1 free",
        "host      1,200 pages (3 MiB)   64 prompt tokens found there ",
        "disk      3 pages (1 MiB)   0 prompt tokens found there   failing",
    ):
        assert text in drawn
    assert "pages (" not in _drawn(FRAME)


def test_the_texts_show_what_was_written_last_and_not_what_waits() -> None:
    lines = _drawn(FRAME).splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["A", "B"]
    assert "It was finished." in lines[-2]
    assert "30/40 ..." in lines[-1]
    assert lines[-1].rstrip().endswith("the last words")


def test_every_request_has_its_own_letter() -> None:
    assert [letter(place) for place in (0, 25, 26, 51, 52)] == ["A", "Z", "a", "z", "A"]
    assert len({letter(place) for place in range(FULL.num_requests)}) == FULL.num_requests


def test_blocks_of_one_request_have_one_colour_and_shared_ones_another() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(View(replace(FRAME, cells=(_used(0), _used(1), _used(0, 2), _used(0))), "t", 0.0))
    codes = re.findall(r"\x1b\[([0-9;]+)m([A-Z0-9]) \x1b", console.file.getvalue())  # type: ignore[attr-defined]
    colours = [code for code, text in codes[:4]]
    assert [text for _, text in codes[:4]] == ["A", "B", "2", "A"]
    assert colours[0] == colours[3]
    assert len(set(colours)) == 3


# -- screens -------------------------------------------------------------------------------------------------------


def test_plain_lines_come_now_and_then_and_the_last_always() -> None:
    stream = io.StringIO()
    with PlainLines(stream) as screen:
        for tenth in range(47):
            screen.show(replace(FRAME, seconds=tenth / 10), 1.0)
    seconds = [float(line.split()[0]) for line in stream.getvalue().splitlines()]
    assert seconds == [0.0, 2.0, 4.0, 4.6]
    assert "\x1b" not in stream.getvalue()


def test_a_line_of_progress() -> None:
    line = format_progress(FRAME, 12.0)
    assert "60 tokens   12.0/s" in line
    assert "blocks   4 used (2 shared) 1 cached 1 free" in line
    assert "faults 11 demand 12 minor 13 copies" in line


def test_the_live_view_draws_and_leaves_the_fullest_frame() -> None:
    console = Console(file=io.StringIO(), width=90, height=30, force_terminal=True, color_system="truecolor")
    screen = LiveView(console, "tiny")
    with screen:
        screen.show(FRAME, 1.0)
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        screen.show(replace(FRAME, seconds=2.51), 1.0)
        assert console.file.getvalue() == drawn  # type: ignore[attr-defined]  # too soon to draw again
        screen.show(replace(FRAME, seconds=5.0), 1.0)
        assert console.file.getvalue() != drawn  # type: ignore[attr-defined]
    screen.conclude(FRAME)
    assert "tiny: at its fullest" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_or_without_rich_the_lines_are_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(open_screen("tiny"), PlainLines)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert isinstance(open_screen("tiny"), LiveView)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(open_screen("tiny"), PlainLines)
    assert "pip install 'kvpager[cli]'" in capsys.readouterr().err


# -- the comparison ------------------------------------------------------------------------------------------------

POOL = Pool(blocks=10, block_bytes=1600, page_size=16, token_bytes=100)  # 160 tokens
COMPARISON = Comparison(
    pool=POOL,
    peak=FRAME,
    last=replace(FRAME, seconds=9.0),
    asked=(Asked(50, 30, False), Asked(30, 20, False), Asked(30, 20, True), Asked(100, 30, False)),
    context=70,
)


def test_the_arithmetic_by_hand() -> None:
    assert POOL.nbytes == 16_000
    assert COMPARISON.used_bytes == 4 * 1600
    assert COMPARISON.shared_pages == 15 - 4
    assert COMPARISON.waste == 8 / (4 * 16)
    assert COMPARISON.held_at_context == 16_000 // (70 * 100) == 2
    assert COMPARISON.held_at_own_maximum == 2  # 50 + 50 of 160 tokens; the next shortest takes 80
    assert COMPARISON.bytes_at_context == 3 * 70 * 100
    assert COMPARISON.forked_tokens == 30


def test_a_pool_that_just_fits_holds_one_more() -> None:
    fitting = replace(COMPARISON, pool=replace(POOL, blocks=12))  # 192 tokens: 50 + 50 + 80 = 180
    assert fitting.held_at_own_maximum == 3
    assert replace(COMPARISON, context=161).held_at_context == 0
    assert replace(COMPARISON, context=160).held_at_context == 1


def test_the_text_shows_its_arithmetic() -> None:
    text = "\n".join(COMPARISON.lines())
    for part in (
        "3 sequences (of 2 requests), 200 tokens of context",
        "4 blocks x 1,600 bytes = 6.2 KiB of a pool of 10 = 15.6 KiB",
        "15 pages in 4 blocks: 11 pages needed no block of their own",
        "8 of 64 slots in use were empty (12.5%)",
        "16,000 // (70 x 100) = 2 sequences",
        "2 sequences reserve 100 of 160 token places",
        "25 of 100 tokens looked up on admission were found (25%), and 30 prompt tokens more came with forks",
    ):
        assert part in text


def test_the_fullest_frame_has_most_sequences_then_most_context() -> None:
    assert is_fuller(replace(FRAME, running=4, live_tokens=1), FRAME)
    assert is_fuller(replace(FRAME, live_tokens=201), FRAME)
    assert not is_fuller(FRAME, FRAME)


def test_the_rate_forgets_what_is_long_ago() -> None:
    rate = _Rate()
    assert rate.after(replace(FRAME, seconds=1.0, generated_tokens=10)) == 10.0
    for second in range(2, 12):
        shown = rate.after(replace(FRAME, seconds=float(second), generated_tokens=10 + 100 * second))
    assert shown == pytest.approx(100.0)


# -- the run -------------------------------------------------------------------------------------------------------

SMALL = Programme(
    prompts=(
        DemoPrompt("You are a guide in a small museum of page tables.", "What is a page?", follow_up="And a block?"),
        DemoPrompt("You are a guide in a small museum of page tables.", "What is a fault?", choices=2),
        DemoPrompt("", "Hello."),
    ),
    max_tokens=12,
    pool_tokens=256,
)


class _Recorder:
    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def show(self, frame: Frame, rate: float) -> None:
        self.frames.append(frame)


@pytest.mark.parametrize("has_template", [True, False], ids=["chat", "base"])
def test_a_run_adds_up(has_template: bool) -> None:
    tokenizer = tiny_tokenizer() if has_template else tiny_tokenizer(template=None)
    with Engine(tiny_model(len(tokenizer)), tokenizer=tokenizer, num_blocks=24, max_batch_tokens=32) as engine:
        demonstration, recorder = Demonstration(engine, SMALL), _Recorder()
        demonstration.play(recorder, Interruption())
        comparison = demonstration.compare()
        engine.check()
    frames = recorder.frames
    for frame in frames:
        states = [cell.state for cell in frame.cells]
        assert states.count(BlockState.USED) == frame.used_blocks
        assert states.count(BlockState.CACHED) == frame.cached_blocks
        assert sum(cell.mappings for cell in frame.cells) == frame.mapped_pages
        assert sum(cell.mappings > 1 for cell in frame.cells) == frame.shared_blocks
        assert all((cell.owner is None) == (cell.state is not BlockState.USED) for cell in frame.cells)
    assert (frames[-1].finished, frames[-1].expected, frames[-1].running) == (4, 4, 0)
    assert [view.choices for view in frames[-1].requests] == [1, 2, 1, 1]
    assert any(frame.shared_blocks for frame in frames)
    assert frames[-1].hit_tokens > 0
    assert comparison.peak.running == max(frame.running for frame in frames)
    assert len(comparison.asked) == 5
    assert comparison.context == 512
    assert sum(view.tokens for view in frames[-1].requests) == frames[-1].generated_tokens


def test_json_is_one_object(kvpager: Call, model: str) -> None:
    ended = kvpager("demo", "--quick", "--model", model, "--json", "--max-context", "400")
    assert ended.code == 0, ended.err
    shown = json.loads(ended.out)
    assert shown["requests"] == QUICK.num_requests
    assert shown["pool_blocks"] == QUICK.pool_tokens // 32
    assert shown["context_limit"] == 400
    assert shown["peak_sequences"] >= 1
    assert shown["peak_used_bytes"] <= shown["pool_bytes"]
    assert "tokens found" in ended.err  # the progress


def test_plain_progress_and_the_comparison(kvpager: Call, model: str) -> None:
    ended = kvpager("demo", "--quick", "--model", model)
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out
    assert " sequences run, " in ended.out
    assert f"{QUICK.num_requests} requests, " in ended.out
    assert "Paged: most ran together" in ended.out
    assert "Contiguous: the same pool" in ended.out


def test_a_model_that_is_missing_is_not_fetched_unasked(
    kvpager: Call, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(name: str) -> Path:
        fetched.append(name)
        return Path(model)

    monkeypatch.setattr("kvpager.models.source.fetch_model", fetch)
    ended = kvpager("demo")
    assert ended.code == 2
    assert "kvpager model fetch smollm2" in ended.err
    assert fetched == []
    kvpager("demo", "--fetch", "--quick")
    assert fetched == ["smollm2"]


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        (Options(), 44),
        (Options(page_size=16), 88),
        (Options(page_size="16KiB"), 88),
        (Options(capacity="1GiB"), None),
        (Options(page_size=10_000), 1),
    ],
    ids=["default", "16", "bytes", "capacity", "huge"],
)
def test_the_pool_is_small_unless_asked_for_otherwise(options: Options, blocks: int | None) -> None:
    assert num_blocks(options, FULL) == blocks


def test_the_prompts_share_and_differ() -> None:
    assert len({prompt.user for prompt in FULL.prompts}) == len(FULL.prompts) == 24
    systems = [prompt.system for prompt in FULL.prompts]
    assert max(systems.count(system) for system in set(systems)) >= 6
    assert any(prompt.choices > 1 for prompt in FULL.prompts)
    assert QUICK.num_requests < FULL.num_requests
