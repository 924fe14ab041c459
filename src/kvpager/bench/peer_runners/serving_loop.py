"""What all runners share: the protocol on standard input and output, arrivals, and the times of tokens.

A runner is a plain script in the interpreter of its engine, so it imports nothing of kvpager. One JSON object a line:

    argument   {"model", "folder", "precision", "threads", "kv_bytes", "variant"}   what to start
    out        {"ready": {"precision", "bits", "kv_tokens", "versions"}}             after loading and warming up
    in         {"run": {"name", "is_timed", "asks", "before"}, "limit"}              a workload, as bench/workloads.py
    out        {"answers": [{"tokens", "due", "times"}, ...], "seconds"}             in the order of the asks
    out        {"stopped": {"share", "seconds"}}                                     too slow; it goes on with the next
    out        {"error": "..."}                                                      instead of any of them

``due`` and ``times`` are seconds after the start of the workload, and ``seconds`` is the last of them: what an engine
prepares before a workload (llama.cpp: its server) and puts away after it is not counted, nor are the asks ``before``
it, which are answered first. The end of the input ends the runner.

``limit``: {"least", "most"}, seconds, or null. A workload is stopped at ``most``. It is its own probe, too: after
``least``, and after twenty seconds at any rate, it is stopped where the share of its tokens that has been computed
leaves no hope for ``most``.

Whatever an engine prints goes to standard error: the runner keeps the real standard output to itself.
A script here must not have the name of a package (openvino.py would be found before OpenVINO).
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

Asks = list[dict[str, Any]]
_PROBE_SECONDS = 20.0
_DOUBT = 1.5  # times ``most``: what the probe must promise at least to be believed, for engines do not work evenly


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds of a workload: it is stopped at ``most``, or after ``least`` where it has no hope for that."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Load:
    """A workload as a runner gets it. ``limit``: None: it may take as long as it needs. ``next_asks``: that come right
    after it and should find what it has left, for an engine that is made ready for what it will be asked."""

    asks: Asks
    is_timed: bool = False
    limit: Limit | None = None
    next_asks: Asks | None = None


WARM_UP = Load([{"prompt": list(range(1000, 1040)), "max_tokens": 4, "conversation": None}] * 2)


class TooSlow(Exception):
    """A runner lets its requests go and raises it on. ``share``: of all tokens, those computed in ``seconds``."""

    def __init__(self, share: float, seconds: float) -> None:
        super().__init__(f"{share:.0%} of the tokens after {seconds:.0f} seconds")
        self.share, self.seconds = share, seconds


@dataclass(slots=True)
class Answer:
    """Tokens, and the times at which they came; None: one whose id the engine does not tell. ``due``: when the request
    could be sent."""

    due: float = 0.0
    tokens: list[int | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)  # where asked for: how far the likeliest logit led


class Peer(Protocol):
    def about(self) -> dict[str, Any]:
        """``precision`` in words, ``bits`` of a weight, ``kv_tokens`` that fit, ``versions``."""

    def run(self, load: Load) -> list[Answer]: ...


class Arrivals:
    """Gives out asks when they are due. In a timed workload a turn waits for its time and for the turn before it.
    Raises TooSlow."""

    def __init__(self, load: Load) -> None:
        self.answers = [Answer() for _ in load.asks]
        self._asks, self._is_timed, self._limit = load.asks, load.is_timed, load.limit
        self._left = list(range(len(load.asks)))
        self._all = sum(len(ask["prompt"]) + ask["max_tokens"] for ask in load.asks)
        self._done = 0  # tokens: of prompts whose first token has come, and of answers
        self._turn_free: dict[int, tuple[int, float]] = {}
        self._begin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._begin

    @property
    def any_left(self) -> bool:
        return bool(self._left)

    def due(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Those that can be sent now and have not been given before, in their order."""
        self._require_hope()
        now, later = self.now(), []
        for index in self._left:
            due = self._due(self._asks[index])
            if due is None or due > now:
                later.append(index)
            else:
                self.answers[index].due = due
                yield index, self._asks[index]
        self._left = later

    def wait(self) -> None:
        """Until the next ask may be due; a little while if that depends on an answer."""
        times = [due for index in self._left if (due := self._due(self._asks[index])) is not None]
        time.sleep(max(0.0, min(min(times, default=0.001) - self.now(), 0.05)))

    def came(self, index: int, tokens: Sequence[int | None]) -> bool:
        """Tokens of an answer; whether they were its last."""
        answer, ask = self.answers[index], self._asks[index]
        now = self.now()
        self._done += len(tokens) + (len(ask["prompt"]) if tokens and not answer.tokens else 0)
        self._require_hope()
        answer.tokens += tokens
        answer.times += [now] * len(tokens)
        is_last = len(answer.tokens) >= ask["max_tokens"]
        if is_last and ask["conversation"] is not None:
            self._turn_free[ask["conversation"]] = (ask["turn"] + 1, now)
        return is_last

    def _require_hope(self) -> None:
        seconds, share = self.now(), self._done / self._all
        if self._limit is None or share >= 1:
            return
        probed = max(_PROBE_SECONDS, self._limit.least)
        is_hopeless = seconds > probed and 0 < share < seconds / (_DOUBT * self._limit.most)
        if is_hopeless or seconds > self._limit.most:
            raise TooSlow(share, seconds)

    def _due(self, ask: dict[str, Any]) -> float | None:
        """None: that is not known before an answer has come."""
        if not self._is_timed:
            return 0.0
        if ask["turn"] == 0:
            return ask["at"]
        turn, free_at = self._turn_free.get(ask["conversation"], (0, 0.0))
        return max(ask["at"], free_at) if turn >= ask["turn"] else None


def versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def serve(start: Callable[[dict[str, Any]], Peer]) -> None:
    """Runs a peer until the input ends."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        peer = start(json.loads(sys.argv[1]))
        lines.write(json.dumps({"ready": peer.about()}) + "\n")
        for line in sys.stdin:
            lines.write(json.dumps(_answer(peer, json.loads(line))) + "\n")
    except Exception as error:
        traceback.print_exc()
        lines.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")


def _answer(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    limit = None if order["limit"] is None else Limit(**order["limit"])
    asks, before = order["run"]["asks"], order["run"]["before"]
    if before:
        peer.run(Load(before, next_asks=asks))
    try:
        answers = peer.run(Load(asks, order["run"]["is_timed"], limit))
    except TooSlow as stopped:
        return {"stopped": {"share": stopped.share, "seconds": stopped.seconds}}
    seconds = max(answer.times[-1] for answer in answers)
    return {"answers": [asdict(answer) for answer in answers], "seconds": seconds}
