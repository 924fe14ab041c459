"""The cost model: what it learns, what it chooses, and how it says so. Times are given, none is measured."""

import random

import pytest

from kvpager.engine.load_or_compute import LoadOrCompute, Offer, Reason
from kvpager.types import TierKind

HOST, DISK = TierKind.HOST, TierKind.DISK
PAGE, BLOCK = 10, 1000  # tokens, bytes


def offers(*tiers: TierKind) -> list[Offer]:
    return [Offer({tier: 1}) for tier in tiers]


def model(
    prefill: float | None = 1e3, host: tuple[float, float] | None = None, disk: tuple[float, float] | None = None
) -> LoadOrCompute:
    """``prefill`` tokens a second; tiers as (latency, bytes a second)."""
    made = LoadOrCompute(PAGE, BLOCK)
    if prefill is not None:
        made.stepped(100, 0, 100 / prefill)
    for tier, line in ((HOST, host), (DISK, disk)):
        if line is not None:
            for blocks in (1, 7, 3):
                made.loaded(tier, blocks, line[0] + blocks * BLOCK / line[1])
    return made


@pytest.mark.parametrize(
    "known", [model(prefill=None, host=(0.0, 1e6)), model(), model(prefill=None), model(disk=(9.0, 1.0))]
)
def test_what_is_unknown_is_found_out_by_loading(known: LoadOrCompute) -> None:
    choice = known.choose(offers(HOST, HOST), 10)
    assert (choice.num_pages, choice.reason, choice.load_seconds) == (2, Reason.UNKNOWN, None)


def test_latency_and_bandwidth_are_told_apart() -> None:
    choice = model(host=(0.003, 1e6)).choose(offers(*[HOST] * 5), 10)
    assert choice.num_pages == 5
    assert choice.load_seconds == pytest.approx(0.003 + 5 * BLOCK / 1e6)
    assert choice.compute_seconds == 0
    assert choice.compute_all_seconds == pytest.approx(5 * PAGE / 1e3)


def test_loads_of_one_size_count_as_bandwidth() -> None:
    made = model()
    made.loaded(HOST, 4, 0.4)
    made.loaded(HOST, 4, 0.4)
    choice = made.choose(offers(*[HOST] * 8), 10)
    assert choice.compute_seconds == pytest.approx(0.08)  # nothing is loaded: 8 pages would take 0.8 s
    assert made.choose(offers(HOST), 10, borders=[]).num_pages == 0


def test_the_leading_pages_are_loaded_as_far_as_it_pays() -> None:
    made = model(host=(0.001, 1e6), disk=(0.5, 1e6))
    choice = made.choose(offers(HOST, HOST, DISK, DISK), 10)
    assert (choice.num_pages, choice.reason) == (2, Reason.FASTER)
    assert choice.compute_seconds == pytest.approx(0.02)
    assert made.choose(offers(HOST, *[DISK] * 100), 1000).num_pages == 101  # now its latency is worth it
    assert made.choose(offers(DISK, HOST), 10).num_pages == 0


def _total(found: list[Offer], count: int, prefill: float, tiers: dict[TierKind, tuple[float, float]]) -> float:
    """Seconds until ``count`` pages are loaded and the others computed; ``tiers``: latency and bytes a second."""
    load = 0.0
    for tier, (latency, speed) in tiers.items():
        blocks = sum(offer.blocks[tier] for offer in found[:count])
        load = max(load, latency + blocks * BLOCK / speed if blocks else 0.0)
    return load + (len(found) - count) * PAGE / prefill


def test_the_choice_is_the_best_of_all() -> None:
    generator = random.Random(5)
    for _ in range(300):
        host, disk = ((generator.uniform(0, 0.1), 10 ** generator.uniform(4, 7)) for _ in range(2))
        prefill = 10 ** generator.uniform(2, 4)
        found = [Offer({HOST: generator.randrange(3), DISK: generator.randrange(3)}) for _ in range(12)]
        borders = generator.choice([None, [4, 8]])
        most = generator.choice([1000, 10])

        totals = [_total(found, count, prefill, {HOST: host, DISK: disk}) for count in range(13)]
        allowed = [
            count
            for count in range(13)
            if (borders is None or count in (0, 4, 8, 12)) and sum(offer.num_blocks for offer in found[:count]) <= most
        ]
        choice = model(prefill, host, disk).choose(found, most, borders)
        assert choice.num_pages in allowed
        assert totals[choice.num_pages] == pytest.approx(min(totals[count] for count in allowed), rel=1e-6)
        assert choice.load_seconds + choice.compute_seconds == pytest.approx(totals[choice.num_pages], rel=1e-6)


def test_what_does_not_fit_is_not_loaded() -> None:
    for made in (model(), model(host=(0.0, 1e9))):
        choice = made.choose(offers(*[HOST] * 6), 4)
        assert (choice.num_pages, choice.reason) == (4, Reason.ROOM)
        choice = made.choose(offers(*[HOST] * 6), 5, borders=[0, 2, 4])
        assert (choice.num_pages, choice.reason) == (4, Reason.ROOM)
        assert made.choose(offers(HOST), 0).num_pages == 0


def test_what_was_too_slow_is_tried_again_now_and_then() -> None:
    made = model(host=(9.0, 1e6))
    chosen = []
    for _ in range(40):
        choice = made.choose(offers(HOST, HOST), 10)
        made.note(choice)
        chosen.append(choice.num_pages)
        if choice.num_pages:
            made.loaded(HOST, 2, 9.0)
    assert chosen.count(2) == 2
    assert chosen.index(2) == 15
    made.loaded(HOST, 2, 0.001)  # it has recovered
    assert made.choose(offers(HOST, HOST), 10).num_pages == 2


def test_what_decoding_takes_is_not_counted_as_prefill() -> None:
    made = LoadOrCompute(PAGE, BLOCK)
    made.loaded(HOST, 1, 1.0)
    made.stepped(100, 4, 0.15)  # how long four take alone is not known yet
    assert made.choose(offers(HOST), 9).reason is Reason.UNKNOWN
    made.stepped(0, 4, 0.05)
    made.stepped(100, 4, 0.15)
    choice = made.choose(offers(HOST), 9)
    assert choice.compute_all_seconds == pytest.approx(PAGE / 1e3)
    made.stepped(100, 4, 0.01)  # faster than decoding alone: noise
    assert 0 < made.choose(offers(HOST), 9).compute_all_seconds < PAGE / 1e3


def test_decisions_are_counted_and_explained() -> None:
    made = model(host=(0.001, 1e6), disk=(0.5, 1e6))
    assert "nothing" in made.explain()
    for found in (offers(HOST, HOST), offers(HOST, DISK), offers(DISK), offers(TierKind.REMOTE)):
        made.note(made.choose(found, 10))
    counts = made.counts()
    assert (counts.loaded, counts.partly, counts.computed) == (2, 1, 1)
    assert (counts.loaded_tokens, counts.computed_tokens) == (40, 20)
    assert counts.reasons == {Reason.FASTER.value: 3, Reason.UNKNOWN.value: 1}
    assert made.explain().startswith("loaded 10 of 10 tokens: a rate is not known yet; host 0.001 GB/s after 1 ms")
    made.note(made.choose(offers(HOST, DISK), 10))
    assert (
        "loaded 10 of 20 tokens: it takes the least time: 2 ms to load and 10 ms to compute the rest" in made.explain()
    )
    assert made.explain().endswith(
        "against 20 ms to compute all; host 0.001 GB/s after 1 ms, disk 0.001 GB/s after 500 ms, prefill 1000 tokens/s"
    )


def test_patience_for_an_answer_is_half_the_time_of_computing() -> None:
    assert LoadOrCompute(PAGE, BLOCK).patience(100) is None
    assert model(prefill=1e3).patience(100) == pytest.approx(0.05)
    assert model(prefill=1e3).patience(-5) == 0
