"""A peer as a process: started once, given workloads, ended. Knows the protocol of peer_runners/serving_loop.py.

The processes of all peers live side by side, so that loading and compiling are not timed; one computes at a time.
"""

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvpager.bench.workloads import Workload, as_json
from kvpager.errors import KVPagerError

START_SECONDS = 600.0
RUN_SECONDS = 600.0
_GRACE_SECONDS = 240.0  # beyond a workload's limit: a runner looks at its clock between two steps


class PeerFailed(KVPagerError):
    """It could not be started, or ended in the middle. The message says why, for the list of those left out."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a peer did of a workload before it was stopped. ``share``: of all its tokens, of prompts and of answers.
    ``answer_tokens``: that the whole workload asks for."""

    share: float
    seconds: float
    answer_tokens: int

    def __str__(self) -> str:
        return f"{self.share:.0%} of the tokens after {self.seconds:.0f} seconds"

    @property
    def whole_seconds(self) -> float:
        """Of the whole workload at that pace. REQUIRES: some share."""
        return self.seconds / self.share

    @property
    def tokens_per_second(self) -> float:
        return self.share * self.answer_tokens / self.seconds


class PeerTooSlow(KVPagerError):
    """It was stopped in the middle of a workload, for it would have taken too long, and is ready for another one."""

    def __init__(self, part: Part) -> None:
        super().__init__(f"stopped with {part}")
        self.part = part


@dataclass(frozen=True, slots=True)
class Answer:
    """A token is None where the engine does not tell its id. ``due``, ``times``: seconds after the start of the
    workload. ``margins``: where asked for, by how much the likeliest logit exceeded the second, for each token."""

    tokens: tuple[int | None, ...]
    due: float
    times: tuple[float, ...]
    margins: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """When a peer is stopped, in seconds of a workload: at ``most``, or after ``least`` where the share of the tokens
    that it has computed by then leaves no hope for that."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Run:
    """``seconds``: until the last token. ``peak_bytes``: of resident memory during the run, all its processes
    together."""

    answers: tuple[Answer, ...]
    seconds: float
    peak_bytes: int


class PeerProcess:
    """A context. ``about``: what the peer says of itself. Raises PeerFailed."""

    def __init__(self, command: list[str], options: dict[str, Any], start_seconds: float = START_SECONDS) -> None:
        self._read = b""
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.about: dict[str, Any] = self._answer("ready", start_seconds)["ready"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, workload: Workload, limit: Limit | None = None) -> Run:
        """Raises PeerTooSlow, if there is a limit."""
        assert self._process.stdin is not None
        _forget_peaks(self._process.pid)
        order = {"run": as_json(workload), "limit": None if limit is None else asdict(limit)}
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"it had ended before {workload.name}") from None
        wait = RUN_SECONDS if limit is None else limit.most + _GRACE_SECONDS
        found = self._answer("answers", wait)
        if (stopped := found.get("stopped")) is not None:
            raise PeerTooSlow(Part(stopped["share"], stopped["seconds"], workload.answer_tokens))
        answers = tuple(
            Answer(tuple(a["tokens"]), a["due"], tuple(a["times"]), tuple(a.get("margins", ())))
            for a in found["answers"]
        )
        _check(workload, answers)
        return Run(answers, found["seconds"], _peak_bytes(self._process.pid))

    def close(self) -> None:
        """Ends it and whatever it has started."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the group is its own, with its children
        self._process.wait()

    def _answer(self, key: str, limit_seconds: float) -> dict[str, Any]:
        line = self._line(time.monotonic() + limit_seconds)
        if line is None:
            raise PeerFailed(f"no answer within {limit_seconds:.0f} seconds")
        if not line:
            raise PeerFailed(f"it ended with {self._process.wait()}; its standard error says why")
        found: dict[str, Any] = json.loads(line)
        if not {key, "stopped"} & found.keys():
            raise PeerFailed(str(found.get("error", f"it answered {sorted(found)}")))
        return found

    def _line(self, until: float) -> bytes | None:
        """Empty: it has ended. None: it takes too long."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            part = os.read(pipe, 1 << 20)
            if not part:
                return b""
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line


def _check(workload: Workload, answers: tuple[Answer, ...]) -> None:
    """Every answer has all its tokens; otherwise a rate would count what never came."""
    if len(answers) != len(workload.asks):
        raise PeerFailed(f"{workload.name}: {len(answers)} answers to {len(workload.asks)} requests")
    for number, (ask, answer) in enumerate(zip(workload.asks, answers, strict=True)):
        if not len(answer.tokens) == len(answer.times) == ask.max_tokens:
            raise PeerFailed(
                f"{workload.name}: request {number} has {len(answer.tokens)} tokens and {len(answer.times)} times, "
                f"not {ask.max_tokens}"
            )


def _tree(root: int) -> list[int]:
    """The process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
            parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for each in found:
        found += parents.get(each, [])
    return found


def _forget_peaks(root: int) -> None:
    """From now on the kernel counts anew."""
    for pid in _tree(root):
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue  # where that is not allowed, the peak is that since its start


def _peak_bytes(root: int) -> int:
    total = 0
    for pid in _tree(root):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return total
