"""Trace files: each format by a small file written by hand, what is damaged in them, and how a format is told."""

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvpager.errors import ConfigError, MissingExtra
from kvpager.eviction.policy import StopReason
from kvpager.simulator.lru_path import replay_lru
from kvpager.simulator.readers import TraceError, WekaOptions, format_of, read_trace, write_arrays
from kvpager.simulator.readers.chains import Requests, build_trace
from tests.simulator.small_traces import chains_of, trace_of

MOONCAKE = [
    {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 3000, "input_length": 1030, "output_length": 6, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 700, "output_length": 7, "hash_ids": [0, 3]},
]
BAILIAN = [
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 9, "type": "text",
     "turn": 1, "hash_ids": [7, 8, 9]},
    {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.25, "input_length": 48, "output_length": 9, "type": "text",
     "turn": 2, "hash_ids": [7, 9, 8]},
]  # fmt: skip
EVENTS: list[Any] = [
    {"ts": 1.0, "events": [{"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": None,
                            "token_ids": [1] * 8, "block_size": 4, "lora_id": None, "medium": "GPU"}]},
    [1.5, [["BlockStored", [13], 12, [1] * 4, 4, None]], 0],  # soon after: the same request goes on
    {"ts": 9.0, "events": [{"type": "BlockRemoved", "block_hashes": [12, 13]}]},
    [20.0, [["BlockStored", [12], 11, [1] * 4, 4]]],  # computed again behind 11, which was still there
    {"ts": 21.0, "events": [{"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": [],
                             "block_size": 4, "medium": "CPU"}, {"type": "AllBlocksCleared"}]},
]  # fmt: skip


def wrote(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def weka_request(t: float, ids: list[int], extra_tokens: int = 0, stop: str = "", **more: Any) -> dict[str, Any]:
    return {"t": t, "in": 64 * len(ids) + extra_tokens, "out": 3, "hash_ids": ids, "stop": stop, **more}


def session(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}


# -- formats -------------------------------------------------------------------------------------------------------


def test_mooncake(tmp_path: Path) -> None:
    trace = read_trace(wrote(tmp_path / "m.jsonl", MOONCAKE))
    assert trace.page_tokens == 512
    assert chains_of(trace) == [[0, 1], [0, 1, 2], [0, 3]]
    assert trace.times.tolist() == [0, 3, 3]  # those of one moment stay in order
    assert trace.has_partial_tail.tolist() == [False, True, True]
    assert trace.output_tokens.tolist() == [5, 6, 7]
    assert (trace.name, trace.skipped_lines) == ("m.jsonl", 0)


def test_requests_are_put_in_order_of_time(tmp_path: Path) -> None:
    trace = read_trace(wrote(tmp_path / "m.jsonl", [MOONCAKE[1], MOONCAKE[0], MOONCAKE[2]]))
    assert trace.output_tokens.tolist() == [5, 6, 7]


def test_bailian_content_is_chained(tmp_path: Path) -> None:
    trace = read_trace(wrote(tmp_path / "b.jsonl", BAILIAN))
    assert trace.page_tokens == 16
    assert trace.times.tolist() == [0.5, 1.25]
    assert chains_of(trace) == [[0, 1, 2], [0, 3, 4]]  # 8 behind 9 is another page than 8 behind 7
    assert trace.has_partial_tail.tolist() == [True, False]
    assert replay_lru(trace, 9).hit_pages.tolist() == [0, 1]


def test_pages_can_be_joined(tmp_path: Path) -> None:
    path = wrote(tmp_path / "b.jsonl", BAILIAN)
    trace = read_trace(path, page_tokens=32)
    assert trace.page_tokens == 32
    assert chains_of(trace) == [[0], [1]]  # 7 8 and 7 9; half a page at the end is left out
    assert not trace.has_partial_tail.any()
    for refused in (0, 8, 24):
        with pytest.raises(ConfigError, match="multiple of the file's 16"):
            read_trace(path, page_tokens=refused)


def test_weka(tmp_path: Path) -> None:
    nested = {"t": 10.0, "type": "subagent", "requests": [weka_request(1.0, [8], stop="tool_use")]}
    first = session(weka_request(0, [1, 2], 5, "tool_use"), nested, weka_request(10.5, [1, 3], stop="end_turn"))
    second = session(weka_request(0, [1, 2, 3, 4]))
    path = wrote(tmp_path / "w.jsonl", [first, second])
    trace = read_trace(path, page_tokens=64, weka=WekaOptions(spread=0))
    assert trace.page_tokens == 64
    assert chains_of(trace) == [[0, 1], [2, 3, 4, 5], [0, 6], [7]]  # ids are local to a session
    assert trace.times.tolist() == [0, 0, 10.5, 11.0]  # a sub-agent's time counts from its start
    assert trace.stop.tolist() == [StopReason.TOOL_CALL, StopReason.UNKNOWN, StopReason.END_OF_TURN, 1]
    assert not trace.has_partial_tail.any()
    joined = read_trace(path, page_tokens=128, weka=WekaOptions(spread=0))
    assert chains_of(joined) == [[0], [1, 2], [3], []]
    assert read_trace(path).page_tokens == 512


def test_weka_pauses_are_cut_and_sessions_spread(tmp_path: Path) -> None:
    path = wrote(
        tmp_path / "w.jsonl", [session(weka_request(0, [1]), weka_request(90_000, [1]), weka_request(90_001, [1]))]
    )
    trace = read_trace(path, weka=WekaOptions(spread=100, max_idle=3600))
    assert 0 <= trace.times[0] <= 100
    assert np.diff(trace.times).tolist() == pytest.approx([3600, 1])
    again, other = (read_trace(path, weka=WekaOptions(spread=100, seed=seed)) for seed in (1, 2))
    assert trace.times[0] == again.times[0] != other.times[0]
    with pytest.raises(ConfigError, match="at least 0"):
        WekaOptions(spread=-1)


def test_weka_sessions_recorded_twice_count_once(tmp_path: Path) -> None:
    one = session(*(weka_request(t, [1, 2], t % 7) for t in range(31)))
    longer = session(*one["requests"], weka_request(99, [1, 2]))
    other = session(*(weka_request(t, [1, 2], t % 5) for t in range(31)))
    path = wrote(tmp_path / "w.jsonl", [one, longer, other])
    assert read_trace(path, page_tokens=64).num_requests == 62
    assert read_trace(path, page_tokens=64, weka=WekaOptions(keep_duplicates=True)).num_requests == 94


def test_azure_lends_arrivals(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:05.0319600,3180,8"]  # fmt: skip
    trace = read_trace(wrote(tmp_path / "a.csv", rows))
    assert trace.times.tolist() == pytest.approx([0, 1.052], abs=1e-5)
    assert trace.input_tokens.tolist() == [4808, 3180]
    with pytest.raises(ConfigError, match="not what they read"):
        replay_lru(trace, 1)
    assert trace_of([1], [1]).with_arrivals(trace).times[1] == pytest.approx(1.052, abs=1e-5)


def test_kv_events(tmp_path: Path) -> None:
    trace = read_trace(wrote(tmp_path / "e.jsonl", EVENTS))
    assert trace.page_tokens == 4
    assert chains_of(trace) == [[0, 1, 2], [0, 1]]
    assert trace.times.tolist() == [1.0, 20.0]
    assert replay_lru(trace, 9).hit_pages.tolist() == [0, 2]


def test_kv_events_of_branches_and_unknown_parents(tmp_path: Path) -> None:
    stored = [
        [time, [["BlockStored", hashes, parent, [], 16]]]
        for time, hashes, parent in [(1.0, ["a", "b"], None), (1.1, ["c"], "b"), (1.2, ["d"], "b"), (9.0, ["z"], "y")]
    ]
    assert chains_of(read_trace(wrote(tmp_path / "e.jsonl", stored))) == [[0, 1, 2], [0, 1, 3], [4, 5]]


def test_arrays(tmp_path: Path) -> None:
    trace = trace_of([1, 2], [1, 3], tails=(0, 2))
    write_arrays(trace, tmp_path / "t.npz")
    found = read_trace(tmp_path / "t.npz")
    assert (found.name, found.page_tokens) == ("small", 4)
    for field in ("first", "pages", "parent", "times", "input_tokens", "output_tokens", "stop", "has_partial_tail"):
        assert np.array_equal(getattr(found, field), getattr(trace, field))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "t.npz").read_bytes()[:-50])
    with pytest.raises(TraceError, match="cut"):
        read_trace(tmp_path / "cut.npz")


# -- damage --------------------------------------------------------------------------------------------------------

_GOOD = {"mooncake": MOONCAKE, "bailian": BAILIAN, "kv-events": EVENTS, "weka": [session(weka_request(0, [1]))] * 2}


@pytest.mark.parametrize(
    ("format", "bad", "message"),
    [
        ("mooncake", '{"timestamp": 0, "inp', "not JSON"),
        ("mooncake", "[1]", "not a JSON object"),
        ("mooncake", {"timestamp": 0, "input_length": 512, "output_length": 5}, "'hash_ids' is missing"),
        ("mooncake", MOONCAKE[0] | {"hash_ids": "01"}, "must be a list"),
        ("mooncake", MOONCAKE[0] | {"hash_ids": [0, 1.5]}, "whole numbers of 64 bits"),
        ("mooncake", MOONCAKE[0] | {"hash_ids": [[0], [1]]}, "whole numbers of 64 bits"),
        ("mooncake", MOONCAKE[0] | {"hash_ids": [0, 2**70]}, "whole numbers of 64 bits"),
        ("mooncake", MOONCAKE[0] | {"hash_ids": [0]}, "1 ids do not fit 1024 tokens"),
        ("mooncake", MOONCAKE[0] | {"input_length": -1}, "'input_length' must be a whole number"),
        ("mooncake", MOONCAKE[0] | {"output_length": True}, "'output_length' must be a whole number"),
        ("mooncake", MOONCAKE[0] | {"timestamp": "now"}, "'timestamp' must be a number"),
        ("mooncake", MOONCAKE[0] | {"timestamp": float("nan")}, "'timestamp' must be a number"),
        ("bailian", BAILIAN[0] | {"input_length": 64}, "3 ids do not fit 64 tokens"),
        ("weka", session(weka_request(0, [1]), {"t": 1, "in": 64, "out": 1, "hash_ids": [1, 2]}), "do not fit"),
        ("weka", session(weka_request(0, [1])) | {"block_size": 16}, "'block_size' must be 64"),
        ("weka", session(weka_request(0, [-1])), "from 0 to"),
        ("weka", {"block_size": 64, "requests": [7]}, "'requests' must be a list of objects"),
        ("kv-events", [1.0, [["BlockLost", [1]]]], "an event must be one of"),
        ("kv-events", [1.0, [["BlockStored", [1], None, [], 8]]], "'block_size' is 8 here and 4 before"),
        ("kv-events", [1.0, [["BlockStored", [1.5], None, [], 4]]], "'block_hashes' must be"),
        ("kv-events", [1.0, [["BlockStored", [1], [2], [], 4]]], "'parent_block_hash' must be"),
        ("kv-events", {"ts": 1.0}, "not a batch"),
    ],
)
def test_a_damaged_line_is_named_and_left_out_only_when_told(
    tmp_path: Path, format: str, bad: Any, message: str
) -> None:
    good = _GOOD[format]
    clean = read_trace(wrote(tmp_path / "clean.jsonl", good), format=format)
    damaged = wrote(tmp_path / "damaged.jsonl", [good[0], "", bad, *good[1:]])
    with pytest.raises(TraceError, match=rf"damaged.jsonl, line 3 is damaged: .*{message}.*--skip-bad"):
        read_trace(damaged, format=format)
    found = read_trace(damaged, format=format, skip_bad=True)
    assert found.skipped_lines == 1
    assert chains_of(found) == chains_of(clean)


def test_a_damaged_row_of_azure(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.97,4808,10", "2023-11-16 18:17:04,1"]
    path = wrote(tmp_path / "a.csv", rows)
    with pytest.raises(TraceError, match="line 3 is damaged: not three fields"):
        read_trace(path)
    found = read_trace(path, skip_bad=True)
    assert (found.num_requests, found.skipped_lines) == (1, 1)


@pytest.mark.parametrize("format", _GOOD)
def test_no_damage_makes_another_error(tmp_path: Path, format: str) -> None:
    whole = bytearray(wrote(tmp_path / "whole", _GOOD[format]).read_bytes())
    rng, path = random.Random(format), tmp_path / "damaged"
    num_read = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randint(0, 2)] = rng.choice(
                [b"", b"-", b"9", b"[", b'"', b"}", b"null", b"\xff"]
            )
        path.write_bytes(damaged)
        with suppress(ConfigError):
            num_read += read_trace(path, format=format, skip_bad=True).num_requests > 0
    assert num_read > 20


# -- packed files, and telling formats -----------------------------------------------------------------------------


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="needs the extra 'zstd'")
    plain = wrote(tmp_path / "m.jsonl", MOONCAKE)
    pack = zstandard.ZstdCompressor().compress
    data = plain.read_bytes()
    (tmp_path / "m.zst").write_bytes(pack(data[:100]) + pack(data[100:]))  # two frames, cut within a line
    assert chains_of(read_trace(tmp_path / "m.zst")) == chains_of(read_trace(plain))
    cut = pack(data * 3000)
    (tmp_path / "cut.zst").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(TraceError, match=r"cut\.zst.* ends too early"):
        read_trace(tmp_path / "cut.zst", format="mooncake")
    (tmp_path / "wrong.zst").write_bytes(pack(data)[:8] + bytes(50))
    with pytest.raises(TraceError, match=r"wrong\.zst"):
        read_trace(tmp_path / "wrong.zst")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    (tmp_path / "m.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(9))
    with pytest.raises(MissingExtra, match=r"kvpager\[zstd\]"):
        read_trace(tmp_path / "m.zst")


@pytest.mark.parametrize("format", _GOOD)
def test_formats_are_told_from_the_content(tmp_path: Path, format: str) -> None:
    assert format_of(wrote(tmp_path / "x", ["{damaged", *_GOOD[format]])) == format


@pytest.mark.parametrize("content", ["", "hello\n", '{"a": 1}\n', "1\n", "\x00\x81\n"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(TraceError, match="no known format"):
        read_trace(tmp_path / "x")


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    path = wrote(tmp_path / "m.jsonl", MOONCAKE)
    with pytest.raises(ConfigError, match="unknown trace format"):
        read_trace(path, format="csv")
    with pytest.raises(ConfigError, match="do not fit"):
        read_trace(path, weka=WekaOptions())
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "absent")


# -- ids -----------------------------------------------------------------------------------------------------------


def test_ids_may_be_hashes_without_a_sign(tmp_path: Path) -> None:
    chains = [[2**64 - 1, 5], [2**64 - 1, 7]]
    lines = [MOONCAKE[0] | {"hash_ids": chain} for chain in chains]
    assert chains_of(read_trace(wrote(tmp_path / "m.jsonl", lines))) == [[0, 1], [0, 2]]


def test_hashes_of_64_bits_make_the_same_trace_as_small_ids() -> None:
    chains = [[1, 2, 3], [1, 2], [4, 2], [1, 2, 3]]
    rng = np.random.default_rng(0)
    hashes = rng.integers(-(2**63), 2**63 - 1, 5)
    small, large = Requests(), Requests()
    for chain in chains:
        small.add(0.0, np.array(chain), 3 * len(chain), 0)
        large.add(0.0, hashes[chain], 3 * len(chain), 0)
    found = [chains_of(build_trace("t", requests, 3)) for requests in (small, large)]
    assert found[0] == found[1] == [[0, 1, 2], [0, 1], [3, 4], [0, 1, 2]]
