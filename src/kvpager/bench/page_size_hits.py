"""What a page size costs in hits: requests hit whole pages, so the end of what they share is lost.

Two sources, replayed by the simulator with LRU and a capacity that is the same in tokens:

    recorded   Mooncake's conversation trace, whose hashes are of 512 tokens: pages of 512 and its multiples only
    made up    conversations with exact tokens, for finer pages: the lengths of 32 of that trace's conversations, in
               which a turn repeats all before it, behind one of four system prompts of 301 to 1,207 tokens

Hits inside pages (``partial_hits``), which the engine has beside these, are left out: with them a page size costs less.
"""

from pathlib import Path

import numpy as np

from kvpager.bench.workload_lengths import Conversation, conversation_lengths
from kvpager.simulator.readers import read_trace
from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.replay import replay
from kvpager.simulator.report import TraceFacts
from kvpager.simulator.trace import Trace

RECORDED_PAGE_SIZES = (512, 1024, 2048, 4096)
_POLICY = "lru"
_SHARE = 0.25  # of the distinct tokens that the cache holds
_RECORDED_SHARE = 0.05
_SYSTEM_PROMPTS = (301, 589, 1000, 1207)  # tokens: no multiples of a page
_CONVERSATION = 1 << 32
_TURN = 1 << 50


def made_up(page_sizes: tuple[int, ...]) -> dict[int, float]:
    """Tokens hit of those asked for, by page size."""
    conversations = conversation_lengths()
    tokens = _distinct_tokens(conversations)
    return {size: _hit_share(conversation_trace(conversations, size), int(_SHARE * tokens)) for size in page_sizes}


def recorded(file: Path) -> dict[int, float]:
    tokens = read_trace(file).num_blocks * RECORDED_PAGE_SIZES[0]
    return {
        size: _hit_share(read_trace(file, page_tokens=size), int(_RECORDED_SHARE * tokens))
        for size in RECORDED_PAGE_SIZES
    }


def _hit_share(trace: Trace, capacity_tokens: int) -> float:
    found = replay(TraceFacts(trace), _POLICY, max(1, capacity_tokens // trace.page_tokens))
    return found.whole.tokens / int(trace.input_tokens.sum(dtype=np.int64))


def conversation_trace(conversations: list[Conversation], page_size: int) -> Trace:
    """The conversations' turns in the order of time, in pages of ``page_size`` tokens."""
    requests = Requests()
    for number, turns in enumerate(conversations):
        system = number % len(_SYSTEM_PROMPTS)
        for turn, length in enumerate(turns):
            tokens = _SYSTEM_PROMPTS[system] + length.prompt_tokens
            ids = _page_ids(number, turn, system, tokens, page_size)
            requests.add(length.at, ids, tokens, length.answer_tokens)
    return build_trace(f"made up, pages of {page_size}", requests, page_size)


def _page_ids(number: int, turn: int, system: int, tokens: int, page_size: int) -> np.ndarray:
    """int64 [pages]: the same where all tokens of a page, and before it, are the same."""
    pages = np.arange(-(-tokens // page_size), dtype=np.int64)
    is_shared = (pages + 1) * page_size <= _SYSTEM_PROMPTS[system]
    owner = np.where(is_shared, system, len(_SYSTEM_PROMPTS) + number)
    ids: np.ndarray = owner * _CONVERSATION + pages
    if tokens % page_size:
        ids[-1] += _TURN * (turn + 1)
    return ids


def _distinct_tokens(conversations: list[Conversation]) -> int:
    return sum(_SYSTEM_PROMPTS) + sum(max(turn.prompt_tokens for turn in turns) for turns in conversations)
