"""Scrubbing back: what comes out is what went in, within bounds."""

from itertools import pairwise

import pytest

from kvpager.metrics.frame_history import FrameHistory
from kvpager.metrics.frames import Frame
from tests.metrics.views import frame, view


def course(count: int, size: int = 40) -> list[Frame]:
    """Frames that differ in their first three blocks."""
    return [
        frame(seq, view(*[(seq + at) % 7 % 4 if at < 3 else 1 for at in range(size)]), activity=[{"n": seq}])
        for seq in range(1, count + 1)
    ]


def filled(frames: list[Frame], whole_every: int = 4, **options: int) -> FrameHistory:
    history = FrameHistory(**options)
    for at, each in enumerate(frames):
        history.add(each.time, each.encode(None if at % whole_every == 0 else frames[at - 1]))
    return history


def test_everything_comes_back() -> None:
    sent = course(10)
    seen = list(filled(sent).frames(0))
    assert [each.seq for each in seen] == [each.seq for each in sent]
    assert all(one.blocks.is_same(other.blocks) for one, other in zip(seen, sent, strict=True))
    assert [figures["seq"] for figures in filled(sent).figures(0)] == list(range(1, 11))


def test_a_time_inside_a_run_begins_there() -> None:
    sent = course(10)
    seen = list(filled(sent).frames(6.5))
    assert [each.seq for each in seen] == [7, 8, 9, 10]
    assert seen[0].blocks.is_same(sent[6].blocks)
    assert list(filled(sent).frames(10.5)) == []


@pytest.mark.parametrize("most", [1, 2, 3, 7, 10, 240])
def test_thinning_keeps_the_newest_and_every_deed(most: int) -> None:
    sent = course(10)
    seen = list(filled(sent).thinned(0, most))
    assert 1 <= len(seen) <= most
    assert seen[-1].seq == 10
    assert [deed["n"] for each in seen for deed in each.figures["activity"]] == list(range(1, 11))
    assert all(each.blocks.is_same(sent[each.seq - 1].blocks) for each in seen)
    gaps = {after.seq - before.seq for before, after in pairwise(seen)}
    assert len(gaps) <= 1


def test_it_is_bounded_and_what_is_left_can_be_read() -> None:
    sent = course(200)
    history = filled(sent, max_bytes=20_000)
    assert 4 <= len(history) < 200
    assert history.num_bytes <= 20_000
    seen = list(history.frames(0))
    assert seen[-1].seq == 200
    assert seen[-1].blocks.is_same(sent[-1].blocks)
    assert len(filled(sent)) == 200  # with room, all of them


def test_the_newest_run_stays_however_large() -> None:
    history = filled(course(8), max_bytes=1)
    assert [each.seq for each in history.frames(0)] == [5, 6, 7, 8]


def test_changes_to_what_is_gone_are_not_kept() -> None:
    first, second = course(2)
    history = FrameHistory()
    history.add(second.time, second.encode(first))
    assert len(history) == 0
    assert list(history.frames(0)) == []
