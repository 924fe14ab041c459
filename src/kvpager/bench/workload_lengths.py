"""How long the requests of a workload are and when they come: from recorded traces, or from two small tables of them.

The tables hold entries at equal distances of what the traces give, so both ways lead to loads of one kind. Knows
lengths and times only; the tokens are made up elsewhere (workloads.py).

    lengths_azure.csv          Azure's conversation trace: Azure/AzurePublicDataset, data/, CC-BY-4.0
    lengths_conversations.csv  Mooncake's conversation trace: kvcache-ai/Mooncake, FAST25-release/traces/, Apache-2.0
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvpager.errors import ConfigError
from kvpager.simulator.readers import read_trace
from kvpager.simulator.trace import Trace

NUM_CONVERSATIONS = 32
NUM_AZURE = 200
_AZURE_FILE, _CONVERSATION_FILE = "AzureLLMInferenceTrace_conv*", "*conversation_trace*"
_LEAST_SHARED_PAGES = 2  # the first page is the same for most requests: it says nothing about a conversation


@dataclass(frozen=True, slots=True)
class Turn:
    """``at``: seconds since the trace began. ``prompt_tokens`` include all turns before."""

    at: float
    prompt_tokens: int
    answer_tokens: int


Conversation = tuple[Turn, ...]
Item = TypeVar("Item")


def conversation_lengths(traces: Path | None = None) -> list[Conversation]:
    """Conversations of two turns and more, in the order in which they begin."""
    if traces is not None:
        return spread(conversations_of(read_trace(_only_file(traces, _CONVERSATION_FILE))), NUM_CONVERSATIONS)
    found: dict[int, list[Turn]] = {}
    for number, at, prompt, answer in _table("lengths_conversations.csv"):
        found.setdefault(int(number), []).append(Turn(float(at), int(prompt), int(answer)))
    return [tuple(turns) for turns in found.values()]


def azure_lengths(traces: Path | None = None) -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of requests that have both."""
    if traces is None:
        return [(int(prompt), int(answer)) for prompt, answer in _table("lengths_azure.csv")]
    trace = read_trace(_only_file(traces, _AZURE_FILE))
    both = zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return spread([(prompt, answer) for prompt, answer in both if prompt and answer], NUM_AZURE)


def conversations_of(trace: Trace) -> list[Conversation]:
    """A request continues the latest one whose full pages it begins with; where two continue one, the first does."""
    last_page_of: dict[int, int] = {}  # the last full page of a request -> the latest request that ends with it
    continues = np.full(trace.num_requests, -1)
    is_continued = np.zeros(trace.num_requests, bool)
    for request in range(trace.num_requests):
        pages = trace.pages[trace.first[request] : trace.first[request + 1]].tolist()
        behind = pages[_LEAST_SHARED_PAGES - 1 :]
        before = next((last_page_of[page] for page in reversed(behind) if page in last_page_of), None)
        if before is not None and not is_continued[before]:
            continues[request], is_continued[before] = before, True
        full = pages[: int(trace.input_tokens[request]) // trace.page_tokens]
        if len(full) >= _LEAST_SHARED_PAGES:
            last_page_of[full[-1]] = request
    return _chains(trace, continues)


def _chains(trace: Trace, continues: np.ndarray) -> list[Conversation]:
    turns_of: dict[int, list[Turn]] = {}
    begin = list(range(trace.num_requests))
    for request, before in enumerate(continues.tolist()):
        if before >= 0:
            begin[request] = begin[before]
        turn = Turn(float(trace.times[request]), int(trace.input_tokens[request]), int(trace.output_tokens[request]))
        turns_of.setdefault(begin[request], []).append(turn)
    return [tuple(turns) for turns in turns_of.values() if len(turns) > 1]


def spread(found: list[Item], count: int) -> list[Item]:
    """``count`` of them at equal distances, or all."""
    return [found[at * len(found) // count] for at in range(count)] if len(found) > count else found


def _only_file(folder: Path, pattern: str) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"--traces {folder} is no folder; give the one that holds the recorded traces, or none")
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not found:
        raise ConfigError(f"{folder} has no file {pattern}; put it there, packed or not, or leave --traces out")
    return found[0]


def _table(name: str) -> list[list[str]]:
    text = files("kvpager.bench").joinpath(name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(",") for line in lines[1:]]  # behind the names of the columns
