"""Traces: what is refused, and how capacities, tokens, halves and arrivals are counted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.simulator.trace import Trace
from tests.simulator.small_traces import trace_of

SMALL = trace_of([1, 2, 3], [1, 2, 4], [5], tails=(0, 1, 3))  # pages 0 1 2, 0 1 3, 4


def test_pages_are_numbered_as_they_appear_and_know_their_parents() -> None:
    assert SMALL.pages.tolist() == [0, 1, 2, 0, 1, 3, 4]
    assert SMALL.parent.tolist() == [-1, 0, 1, 1, -1]
    assert SMALL.input_tokens.tolist() == [12, 11, 1]
    assert SMALL.has_partial_tail.tolist() == [False, True, True]
    assert (SMALL.num_requests, SMALL.num_references, SMALL.num_blocks, SMALL.second_half) == (3, 7, 5, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pages": np.array([0, 1, 2, 0, 1, 3, 4])}, "pages must be an array of int32"),
        ({"pages": np.array([0, 1, 3, 0, 1, 2, 4], np.int32)}, "order of first appearance"),
        ({"pages": np.array([0, 1, 2, 0, 1, 3, -1], np.int32)}, "order of first appearance"),
        ({"parent": np.array([-1, 0, 1, 1, -1, 4], np.int32)}, "order of first appearance"),
        ({"parent": np.array([-1, 0, 1, 0, -1], np.int32)}, "another one than its parent"),
        ({"first": np.array([0, 3, 6, 6])}, "first must go from 0"),
        ({"first": np.array([0, 6, 3, 7])}, "first must not fall"),
        ({"first": np.array([0, 3, 7])}, "one entry more"),
        ({"times": np.array([0.0, 2.0, 1.0])}, "times must be finite and not fall"),
        ({"times": np.array([0.0, 1.0, np.nan])}, "times must be finite and not fall"),
        ({"stop": np.zeros(2, np.uint8)}, "stop must have one entry a request"),
        ({"output_tokens": np.array([1, -1, 1], np.int32)}, "tokens must not be negative"),
        ({"input_tokens": np.array([11, 11, 1], np.int32)}, "fewer tokens than its full pages"),
        ({"input_tokens": np.array([12, 8, 1], np.int32)}, "partial last page"),
        ({"page_tokens": 0}, "page_tokens must be at least 1"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    assert replace(SMALL).num_requests == 3
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("size", "blocks"), [(3, 3), ("3", 3), ("60%", 3), ("50%", 3), ("100 %", 5), ("100%", 5), ("1KiB", 2), ("40%", 2)]
)
def test_capacities(size: int | str, blocks: int) -> None:
    assert SMALL.capacity(size, bytes_per_token=100) == blocks  # a block of 4 tokens has 400 bytes


@pytest.mark.parametrize("size", [0, -1, "0", "1%", "0%", "101%", "x%", "", "lots", "100B", True, "1/0%"])
def test_capacities_that_are_refused(size: int | str) -> None:
    with pytest.raises(ConfigError):
        SMALL.capacity(size, bytes_per_token=100)


def test_a_size_in_bytes_needs_the_bytes_of_a_token() -> None:
    with pytest.raises(ConfigError, match="bytes of KV per token"):
        SMALL.capacity("1MiB")


def test_hits_are_counted_in_tokens_and_in_pages() -> None:
    hits = np.array([0, 3, 1], np.int32)
    assert SMALL.hit_tokens(hits).tolist() == [0, 11, 1]
    assert SMALL.token_ratio(hits) == pytest.approx(12 / 24)
    assert SMALL.token_ratio(hits, start=SMALL.second_half) == pytest.approx(12 / 12)
    assert SMALL.block_ratio(hits) == pytest.approx(4 / 7)
    assert SMALL.block_ratio(hits, start=2) == pytest.approx(1 / 1)


def test_the_shared_head_can_be_left_out() -> None:
    assert SMALL.shared_head().tolist() == [0, 1]
    assert SMALL.net_of_head(np.array([1, 3, 1])).tolist() == [0, 1, 1]
    assert trace_of([1], [2]).shared_head().tolist() == []
    with pytest.raises(ConfigError, match="share"):
        SMALL.shared_head(0.4)


def test_arrivals_are_borrowed_and_repeated() -> None:
    lender = replace(trace_of([9], [9]), times=np.array([10.0, 13.0]), name="lender")
    borrowed = SMALL.with_arrivals(lender)
    assert borrowed.times.tolist() == [0.0, 3.0, 6.0]
    assert borrowed.pages is SMALL.pages
    assert borrowed.name == "small@lender"


def test_arrivals_alone_can_not_be_replayed() -> None:
    arrivals: Trace = trace_of([], [])
    with pytest.raises(ConfigError, match="--arrivals"):
        arrivals.require_pages()
    SMALL.require_pages()
    trace_of().require_pages()
