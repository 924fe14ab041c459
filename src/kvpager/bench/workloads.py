"""The requests that engines are compared on: the same token ids for everybody, made from a seed.

Knows no engine. A runner takes ``Workload.asks`` in their order and

- first answers ``Workload.before``, if there is anything, and starts its clock after that;
- lets every answer run to its ``max_tokens``, whatever its tokens are;
- sends a request ``at`` its time after the start, where the workload is timed; a turn of a conversation not before the
  turn before it has been answered, as its user would;
- may write the whole as JSON (``as_json``) for a process that has no kvpager.

The ids are plain ones: special tokens stand at either end of a vocabulary, and both ends are left out. No two
workloads, and no two seeds of one, begin alike: nothing is found that another one has left in a cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.bench.report import SEED
from kvpager.bench.workload_lengths import azure_lengths, conversation_lengths, spread
from kvpager.errors import ConfigError

LONGEST = 8192  # tokens of a request and its answer
SYSTEM_TOKENS = 2000
_TRACE_PART = 16  # a conversation's lengths are divided by it: the trace's longest request has 128,195 tokens
_OFFERED = 2.0  # times what the best peer can serve: conversations come that fast, so how fast they end is the engine's
_PEER_PROMPT_RATE, _PEER_ANSWER_RATE = 2450.0, 640.0  # tokens a second: that peer's, the most on record (docs/log.md)
_AZURE_LONGEST = 14_089  # tokens of the trace's longest request and its answer
_LEAST_NEW = 1  # tokens a turn adds at least


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``at``: seconds after the start. ``turn``: of its ``conversation``, from 0."""

    prompt: tuple[int, ...]
    max_tokens: int
    at: float = 0.0
    conversation: int | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """``is_timed``: requests come at their times; otherwise all are there at the start. ``before``: answered before
    the start, so that what they have in common with ``asks`` is known to an engine that keeps it."""

    name: str
    asks: tuple[Ask, ...]
    is_timed: bool
    before: tuple[Ask, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return sum(len(ask.prompt) for ask in self.asks)

    @property
    def answer_tokens(self) -> int:
        return sum(ask.max_tokens for ask in self.asks)


@dataclass(frozen=True, slots=True)
class _Setting:
    tokens: "_Tokens"
    scale: float
    traces: Path | None

    def count(self, whole: int) -> int:
        return max(1, round(whole * self.scale))


class _Tokens:
    """Made-up text: plain ids, each as likely as the others. Each ``name`` has others."""

    def __init__(self, vocab: int, seed: int, name: str) -> None:
        left_out = max(1, vocab // 32)
        self._first, self._end = left_out, vocab - left_out
        self._random = np.random.default_rng((seed, *name.encode()))

    def __call__(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.integers(self._first, self._end, count).tolist())


def workload(
    name: str, vocab: int = 49152, scale: float = 1.0, seed: int = SEED, traces: str | Path | None = None
) -> Workload:
    """The workload ``name``, one of ``NAMES``.

    ``scale``: the share of its requests (or conversations) to take, at least one; their lengths stay. ``traces``: a
    folder with the recorded traces (``conversations``, ``azure``); None takes lengths that come with kvpager.
    Raises ConfigError.
    """
    if name not in _MAKERS:
        raise ConfigError(f"unknown workload {name!r}; there are {', '.join(_MAKERS)}")
    if not 0 < scale <= 1:
        raise ConfigError(f"scale must be above 0 and at most 1, not {scale}")
    if vocab < 64:
        raise ConfigError(f"a workload needs a vocabulary of 64 tokens and more, not {vocab}")
    tokens = _Tokens(vocab, seed, name)
    asks = _MAKERS[name](_Setting(tokens, scale, None if traces is None else Path(traces)))
    before = (Ask(asks[0].prompt[:SYSTEM_TOKENS], 1),) if name == "shared_prefix" else ()
    return Workload(name, tuple(asks), name == "conversations", before)


def _alike(requests: int, prompt: int, answer: int) -> Callable[[_Setting], list[Ask]]:
    return lambda setting: [Ask(setting.tokens(prompt), answer) for _ in range(setting.count(requests))]


def _shared_prefix(setting: _Setting) -> list[Ask]:
    """One system prompt, and short questions behind it. The prompt is known, as a server's is that has been asked
    before: of requests that are there at once, some engines share nothing that none of them has computed."""
    system = setting.tokens(SYSTEM_TOKENS)
    lengths = [24 + 8 * (number % 3) for number in range(setting.count(64))]  # 32 tokens in the mean
    return [Ask(system + setting.tokens(length), 64) for length in lengths]


def _conversations(setting: _Setting) -> list[Ask]:
    """Each turn's prompt is the one before it, an answer that is made up here, and new tokens of the user. Times are
    the trace's, all divided alike: at its own pace engines wait for requests, and all look equally fast."""
    found = conversation_lengths(setting.traces)
    chosen = spread(found, setting.count(len(found)))
    asks = []
    for number, turns in enumerate(chosen):
        prompt: tuple[int, ...] = ()
        for turn, length in enumerate(turns):
            new = length.prompt_tokens // _TRACE_PART - len(prompt)
            prompt += setting.tokens(max(_LEAST_NEW, new))
            answer = max(1, length.answer_tokens // _TRACE_PART)
            asks.append(Ask(prompt, answer, length.at, number, turn))
            prompt += setting.tokens(answer)
    asks.sort(key=lambda ask: (ask.at, ask.conversation, ask.turn))
    start, end = asks[0].at, asks[-1].at
    speed = (end - start) / _arrival_seconds(asks) or 1.0
    return [replace(ask, at=(ask.at - start) / speed) for ask in asks]


def _arrival_seconds(asks: Sequence[Ask]) -> float:
    """In which all of them come: half of what the best peer needs to compute what is new in them."""
    answered, new = dict[int | None, int](), 0
    for ask in asks:
        new += len(ask.prompt) - answered.get(ask.conversation, 0)
        answered[ask.conversation] = len(ask.prompt)
    answers = sum(ask.max_tokens for ask in asks)
    return (new / _PEER_PROMPT_RATE + answers / _PEER_ANSWER_RATE) / _OFFERED


def _azure(setting: _Setting) -> list[Ask]:
    """All shortened alike, by what the longest of the trace needs to fit."""
    lengths = azure_lengths(setting.traces)
    part = LONGEST / _AZURE_LONGEST
    return [
        Ask(setting.tokens(max(1, int(prompt * part))), max(1, int(answer * part)))
        for prompt, answer in spread(lengths, setting.count(len(lengths)))
    ]


_MAKERS: dict[str, Callable[[_Setting], list[Ask]]] = {
    "1x128": _alike(1, 128, 128),
    "32x128": _alike(32, 128, 128),
    "128x128": _alike(128, 128, 128),
    "16x2048": _alike(16, 2048, 64),
    "shared_prefix": _shared_prefix,
    "conversations": _conversations,
    "azure": _azure,
}
NAMES = tuple(_MAKERS)


def as_json(load: Workload) -> dict[str, Any]:
    asks, before = ([asdict(ask) for ask in each] for each in (load.asks, load.before))
    return {"name": load.name, "is_timed": load.is_timed, "asks": asks, "before": before}


def from_json(record: dict[str, Any]) -> Workload:
    """REQUIRES: what ``as_json`` returned."""
    asks, before = (
        tuple(Ask(**{**ask, "prompt": tuple(ask["prompt"])}) for ask in record[name]) for name in ("asks", "before")
    )
    return Workload(record["name"], asks, record["is_timed"], before)
