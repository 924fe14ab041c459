"""Our own recordings: what is written is what is read, no content gets into it, and a broken disk ends only it."""

import errno
import json
from pathlib import Path

import pytest

from kvpager.errors import ConfigError
from kvpager.eviction.policy import StopReason
from kvpager.simulator.readers import TraceError, format_of, read_trace
from kvpager.simulator.recording import Recorder
from tests.simulator.small_traces import chains_of

KEYS = [bytes([i]) * 32 for i in range(9)]


def recorded(path: Path, salt: bytes | None = b"salt") -> Path:
    with Recorder(path, page_tokens=16, salt=salt) as recorder:
        recorder.record(100.0, KEYS[:2], input_tokens=32, output_tokens=7, matched=0)
        recorder.record(101.5, KEYS[:3], input_tokens=40, output_tokens=0, matched=2, stop=StopReason.TOOL_CALL)
        recorder.record(101.0, [KEYS[8]], input_tokens=17, output_tokens=1, matched=0, stop=StopReason.END_OF_TURN)
        assert (recorder.num_requests, recorder.failure) == (3, "")
    return path


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    trace = read_trace(recorded(tmp_path / "r.jsonl"))
    assert trace.page_tokens == 16
    assert chains_of(trace) == [[0, 1], [2], [0, 1, 3]]
    assert trace.times.tolist() == [100, 101, 101.5]  # they ended in another order than they came
    assert trace.input_tokens.tolist() == [32, 17, 40]
    assert trace.output_tokens.tolist() == [7, 1, 0]
    assert trace.has_partial_tail.tolist() == [False, False, True]
    assert trace.stop.tolist() == [StopReason.UNKNOWN, StopReason.END_OF_TURN, StopReason.TOOL_CALL]


def test_the_salt_hides_which_content_it_was(tmp_path: Path) -> None:
    first, second = (recorded(tmp_path / name, None).read_text() for name in "ab")
    assert first != second
    assert KEYS[0][:8].hex() not in first
    same, again = (recorded(tmp_path / name).read_text() for name in "cd")
    assert same == again


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r.jsonl", page_tokens=16) as recorder:
        recorder.record(0.0, KEYS[:1], input_tokens=16, output_tokens=1, matched=0)
        assert read_trace(tmp_path / "r.jsonl").num_requests == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    before = recorded(tmp_path / "r.jsonl").read_text()
    with pytest.raises(ConfigError, match="exists already"):
        Recorder(tmp_path / "r.jsonl", page_tokens=16)
    assert (tmp_path / "r.jsonl").read_text() == before
    with pytest.raises(ConfigError, match="can't be made"):
        Recorder(tmp_path / "absent" / "r.jsonl", page_tokens=16)


@pytest.mark.parametrize(
    ("num_keys", "input_tokens", "matched"), [(1, 32, 0), (4, 48, 0), (2, 32, 3), (2, 32, -1), (1, 0, 0)]
)
def test_counts_that_contradict_each_other_are_refused(
    tmp_path: Path, num_keys: int, input_tokens: int, matched: int
) -> None:
    with Recorder(tmp_path / "r.jsonl", page_tokens=16) as recorder:
        recorder.record(0.0, KEYS[:2], input_tokens=32, output_tokens=1, matched=2)
        with pytest.raises(ConfigError):
            recorder.record(1.0, KEYS[:num_keys], input_tokens=input_tokens, output_tokens=1, matched=matched)
        assert recorder.num_requests == 1


def test_a_full_disk_ends_the_recording_only_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(tmp_path / "r.jsonl", page_tokens=16) as recorder:
        recorder.record(0.0, KEYS[:1], input_tokens=16, output_tokens=1, matched=0)
        file, left = recorder._file, 30  # bytes

        class Full:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def write(self, data: bytes) -> int:
                nonlocal left
                if not left:
                    raise OSError(errno.ENOSPC, "No space left on device")
                written, left = file.write(data[:left]), left - len(data[:left])
                return written

        monkeypatch.setattr(recorder, "_file", Full())
        for _ in range(3):
            recorder.record(1.0, KEYS[:1], input_tokens=16, output_tokens=1, matched=0)
        assert recorder.failure == "the recording ended after 1 requests: No space left on device"
        assert recorder.num_requests == 1
    assert read_trace(tmp_path / "r.jsonl").num_requests == 1


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert recorded(tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o600


def test_what_nobody_counted_is_not_made_up(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r.jsonl", page_tokens=16) as recorder:
        recorder.record(0.0, KEYS[:1], input_tokens=16, output_tokens=1, matched=None)
    assert '"matched":null' in (tmp_path / "r.jsonl").read_text()
    assert read_trace(tmp_path / "r.jsonl").num_requests == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pages": "ab"}, "16 hexadecimal digits"),
        ({"pages": "x" * 32}, ""),
        ({"in": 70}, "2 pages do not fit"),
        ({"matched": 3}, "'matched' must be"),
        ({"stop": "bored"}, "'stop' must be one of"),
        ({"t": None}, "'t' must be a number"),
        ({"format": "kvpager-trace", "version": 2}, "version 1"),
        ({"format": "kvpager-trace", "version": 1, "page_tokens": 32}, "32 tokens from here on and 16 before"),
    ],
)
def test_damaged_lines(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = recorded(tmp_path / "r.jsonl")
    header, first, *rest = path.read_text().splitlines()
    damaged = json.dumps(json.loads(first) | changes)
    path.write_text("\n".join([header, first, damaged, *rest]))
    with pytest.raises(TraceError, match=f"line 3 is damaged: .*{message}"):
        read_trace(path)
    found = read_trace(path, skip_bad=True)
    assert (found.skipped_lines, found.num_requests) == (1, 3)


def test_a_recording_without_its_header_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl")
    assert format_of(path) == "recorded"
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    with pytest.raises(TraceError, match="line 1 is damaged: the header"):
        read_trace(path, format="recorded")
