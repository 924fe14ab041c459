"""The peers' benchmark without an engine: the protocol with a fake runner, arrivals, the ratios, loud skipping."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvpager.bench import peers as bench
from kvpager.bench.peer_catalog import OURS, PEERS, Peer, chosen
from kvpager.bench.peer_code import code_digest
from kvpager.bench.peer_contest import Field, Rounds, Runners, contest
from kvpager.bench.peer_figures import agreement, best_of, latency, most_at_once, ratio
from kvpager.bench.peer_found import Found, Kept
from kvpager.bench.peer_process import Answer, Limit, Part, PeerFailed, PeerProcess, PeerTooSlow, Run
from kvpager.bench.peer_results import results, without_a_whole_run
from kvpager.bench.peer_scale import PREFIX_HIT, Scale, estimated_seconds, prefix_hits, scale_of, shortened
from kvpager.bench.workloads import NAMES, SYSTEM_TOKENS, Ask, Workload, workload
from kvpager.errors import ConfigError, InvariantError

FAKE = Path(__file__).parent / "fake_peer.py"
RUNNERS = Path(bench.__file__).parent / "peer_runners"
LOAD = Workload("little", tuple(Ask((number, 7), 3) for number in range(4)), is_timed=False)
ABOUT = {"precision": "", "bits": 16, "versions": {}}


@contextmanager
def fake(variant: str = "", **more: object) -> Iterator[PeerProcess]:
    options = {"threads": 1, "variant": variant, **more}
    with PeerProcess([sys.executable, "-S", str(FAKE)], options, start_seconds=60.0) as process:
        yield process


class TestProtocol:
    def test_answers_come_with_their_tokens_and_times(self) -> None:
        with fake() as peer:
            assert peer.about["versions"] == {"fake": "1"}
            for _ in range(2):
                run = peer.run(LOAD)
                assert [answer.tokens for answer in run.answers] == [(8, 9, 10)] * 4
        assert all(list(answer.times) == sorted(answer.times) for answer in run.answers)
        assert 0 < max(answer.times[-1] for answer in run.answers) <= run.seconds

    def test_what_it_prints_does_not_disturb(self) -> None:
        with fake() as peer:  # it prints a line before its first answer
            assert peer.about["bits"] == 16

    @pytest.mark.parametrize(
        ("variant", "words"), [("refuses", "this processor lacks something"), ("dies", "it ended with 3")]
    )
    def test_one_that_does_not_start_says_why(self, variant: str, words: str) -> None:
        with pytest.raises(PeerFailed, match=words), fake(variant):
            pass

    def test_a_missing_token_is_no_answer(self) -> None:
        with fake("forgets") as peer, pytest.raises(PeerFailed, match="request 3 has 2 tokens and 3 times, not 3"):
            peer.run(LOAD)

    def test_one_without_hope_is_stopped_and_runs_the_next(self) -> None:
        with fake("dawdles") as peer:
            with pytest.raises(PeerTooSlow, match="of the tokens after 0 seconds") as stopped:
                peer.run(LOAD, Limit(0.0, 0.02))
            assert 0 <= stopped.value.part.share < 1
            assert stopped.value.part.answer_tokens == 12
            assert len(peer.run(LOAD, Limit(0.0, 60.0)).answers) == 4

    def test_what_comes_before_is_answered_and_not_told(self) -> None:
        with fake("counts") as peer:  # its tokens tell how often it has been asked
            assert peer.run(LOAD).answers[0].tokens == (8, 9, 10)
            answers = peer.run(replace(LOAD, before=(Ask((1, 2), 2),))).answers
            assert [answer.tokens for answer in answers] == [(10, 13, 16)] * 4

    def test_seconds_end_with_the_last_token(self) -> None:
        with fake("tidies") as peer:
            run = peer.run(LOAD)
        assert run.seconds == max(answer.times[-1] for answer in run.answers)

    def test_the_peak_is_of_the_run(self) -> None:
        with fake("grows") as growing, fake() as still:
            assert growing.run(LOAD).peak_bytes > still.run(LOAD).peak_bytes + (32 << 20)

    def test_turns_wait_for_their_time_and_for_the_turn_before(self) -> None:
        asks = (Ask((1,), 2, 0.0, 0, 0), Ask((1, 2, 3), 2, 0.0, 0, 1), Ask((5,), 2, 0.05, 1, 0))
        with fake() as peer:
            first, second, late = peer.run(Workload("turns", asks, is_timed=True)).answers
        assert second.due == first.times[-1]
        assert late.due == 0.05 <= late.times[0]


def run_of(seconds: float, peak: int = 100) -> Run:
    answers = (Answer((1, 2), 0.0, (seconds / 2, seconds)), Answer((1, 2), 0.0, (seconds / 4, seconds)))
    return Run(answers, seconds, peak)


class TestFigures:
    def test_latency(self) -> None:
        seen = latency((Answer((1, 2, 3), 1.0, (1.5, 1.6, 1.8)),))
        assert (seen.first_p50, seen.gap_p50) == (pytest.approx(500.0), pytest.approx(150.0))
        assert latency((Answer((1,), 0.0, (1.0,)),)).gap_p50 is None

    def test_most_at_once_counts_overlaps(self) -> None:
        spans = [(0.0, 2.0), (1.0, 3.0), (2.5, 4.0)]
        assert most_at_once(tuple(Answer((1, 2), 0.0, span) for span in spans)) == 2

    def test_agreement_ends_at_the_first_difference(self) -> None:
        right = (Answer((1, 2, 3, 4), 0.0, (1.0,) * 4, (9.0, 0.5, 9.0, 9.0)),) * 2
        other = (Answer((1, 5, 3, 4), 0.0, (1.0,) * 4), Answer((1, 2, 3, 4), 0.0, (1.0,) * 4))
        found = agreement(other, right)
        assert (found.share, found.first, found.margin) == (5 / 8, 1, 0.5)
        same = agreement(right, right)
        assert (same.share, same.first, same.margin) == (1.0, None, 0.0)

    def test_a_ratio_is_paired_by_round(self) -> None:
        found = ratio("x", [2.0, 20.0, 4.0], [1.0, 10.0, 1.0])
        assert found.value == 2.0
        assert found.spread == (2.0, 3.0)
        assert ratio("x", [2.0], [1.0]).spread is None

    def test_the_best_is_the_fastest_that_was_measured(self) -> None:
        assert best_of({"a": [3.0, 1.0, 3.0], "b": [2.0], OURS: [1.0]}, ["a", "b", "c"]) == "b"
        assert best_of({"a": []}, ["a"]) is None


class TestResults:
    def of(self, **bits: int) -> dict[str, float]:
        rounds = {
            "32x128": {OURS: [run_of(2.0, 110)], "a": [run_of(4.0, 100)], "b": [run_of(1.0, 50)]},
            PREFIX_HIT: {OURS: [run_of(1.0, 1)], "a": [run_of(4.0, 1)]},
        }
        about = {name: {**ABOUT, "bits": bits.get(name, 16)} for name in (OURS, "a", "b")}
        return {each.name: each.value for each in results(rounds, {}, about, {}, {"a": 3}, 64 << 20)}

    def test_against_the_best_of_all(self) -> None:
        found = self.of()
        assert found["peer_32x128_vs_best"] == 0.5  # b is twice as fast
        assert found["peak_memory_vs_leanest"] == 2.2

    def test_other_weights_make_no_rival(self) -> None:
        found = self.of(b=4)
        assert found["peer_32x128_vs_best"] == 2.0
        assert found["peak_memory_vs_leanest"] == 1.1
        assert found["peer_32x128_tokens_per_second/b"] == 4.0  # it is shown all the same

    def test_time_to_first_token_is_ours_over_theirs(self) -> None:
        assert self.of()["ttft_prefix_hit_vs_best"] == 0.25

    def test_without_a_peer_there_is_no_ratio(self) -> None:
        found = results({"1x128": {OURS: [run_of(1.0)]}}, {}, {OURS: ABOUT}, {}, {}, 64 << 20)
        assert not any(each.name.endswith("_vs_best") for each in found)

    def with_parts(self, runs: Runners, **parts: Part) -> tuple[dict[str, float], list[str]]:
        rounds, stopped = {"32x128": {OURS: [run_of(10.0)], **runs}}, {"32x128": parts}
        about = dict.fromkeys((OURS, "a", "b"), ABOUT)
        values = {each.name: each.value for each in results(rounds, stopped, about, {}, {}, 64 << 20)}
        return values, list(without_a_whole_run(rounds, stopped, ["a", "b"]))

    def test_the_best_has_come_to_the_end(self) -> None:
        found, said = self.with_parts({"a": [run_of(20.0)]}, b=Part(0.9, 9.0, 400))
        assert found["peer_32x128_vs_best"] == 2.0, "not against the pace of one that was stopped"
        assert found["peer_32x128_tokens_per_second_until_stopped/b"] == pytest.approx(40.0)
        assert found["peer_32x128_stopped_at/b"] == 0.9
        assert "peer_32x128_tokens_per_second/b" not in found
        assert said == []

    def test_where_none_has_the_pace_over_enough_of_it_counts_and_is_said(self) -> None:
        found, said = self.with_parts({}, a=Part(0.5, 20.0, 400), b=Part(0.4, 4.0, 400))
        assert found["peer_32x128_vs_best"] == 4.0
        against = "the ratio is against a at its pace over 50% of the tokens after 20 seconds"
        assert said == [f"32x128: no peer has run all of it; {against}"]
        found, said = self.with_parts({}, a=Part(0.0, 480.0, 400), b=Part(0.4, 4.0, 400))
        assert "peer_32x128_vs_best" not in found
        assert said == ["32x128: no ratio, for no peer has run 50% of its tokens"]

    def test_memory_is_compared_where_both_have_come_to_the_end(self) -> None:
        """What a peer would have needed in a workload in which it was stopped is not known."""
        rounds: Rounds = {
            "1x128": {OURS: [run_of(1.0, 60)], "a": [run_of(1.0, 50)], "b": [run_of(1.0, 300)]},
            "32x128": {OURS: [run_of(1.0, 300)], "b": [run_of(1.0, 200)]},
        }
        about = dict.fromkeys((OURS, "a", "b"), ABOUT)
        found = {each.name: each.value for each in results(rounds, {}, about, {}, {}, 64 << 20)}
        assert found["peak_memory_vs_leanest"] == 1.2, "a's: 300 over 300 is b's, and 300 over 50 nobody's"

    def test_memory_is_compared_over_the_same_rounds(self) -> None:
        """An engine that keeps what it has computed takes more with each round; only the fastest peer runs them all."""
        rounds: Rounds = {
            "1x128": {OURS: [run_of(1.0, 60), run_of(1.0, 90)], "a": [run_of(1.0, 50)]},
            "32x128": {OURS: [run_of(1.0, 100), run_of(1.0, 300)], "a": [run_of(1.0, 200), run_of(1.0, 250)]},
        }
        about = dict.fromkeys((OURS, "a"), ABOUT)
        found = {each.name: each.value for each in results(rounds, {}, about, {}, {}, 64 << 20)}
        assert found["peak_memory_vs_leanest"] == 1.2
        rounds["32x128"]["a"].pop()
        found = {each.name: each.value for each in results(rounds, {}, about, {}, {}, 64 << 20)}
        assert found["peak_memory_vs_leanest"] == 0.5
        assert found["peak_memory_all_rounds_vs_leanest"] == 1.5


class _Scripted:
    """``seconds``: of its runs, by workload or of all; of several rounds, one after the other."""

    def __init__(self, name: str, seconds: float | dict[str, list[float]], log: list[str], fails: bool = False) -> None:
        self._name, self._seconds, self._log, self._fails = name, seconds, log, fails
        self.limits: list[Limit | None] = []

    def run(self, workload: Workload, limit: Limit | None = None) -> Run:
        if self._fails:
            raise PeerFailed("out of memory")
        seconds = self._seconds[workload.name].pop(0) if isinstance(self._seconds, dict) else self._seconds
        self.limits.append(limit)
        self._log.append(self._name)
        if limit is not None and seconds > limit.most:
            raise PeerTooSlow(Part(0.25, limit.most, workload.answer_tokens))
        return run_of(seconds)


class _Told:
    """Notes what it is told, as the benchmark does."""

    def __init__(self) -> None:
        self.found, self.ran = Found(), list[str]()

    @property
    def skipped(self) -> list[tuple[str, str, str]]:
        return [(each.peer, each.workload, each.reason) for each in self.found.skipped]

    def skip(self, peer: str, workload: str, reason: str) -> None:
        self.found.skip(peer, workload, reason)

    def stopped(self, peer: str, workload: str, part: Part, rounds: int) -> None:
        self.found.stop(peer, workload, part, rounds)

    def done(self, workload: str, runs: Runners) -> None:
        self.ran.append(workload)


class TestContest:
    def setup_method(self) -> None:
        self.log, self.told = list[str](), _Told()

    def engines(self, fails: bool = False) -> dict[str, _Scripted]:
        return {
            OURS: _Scripted(OURS, 900.0, self.log),
            "fast": _Scripted("fast", 40.0, self.log),
            "near": _Scripted("near", 50.0, self.log, fails),
            "slow": _Scripted("slow", 79.0, self.log),
            "uneven": _Scripted("uneven", {"1x128": [81.0], "32x128": [30.0] * 3}, self.log),
        }

    def run(
        self, engines: dict[str, _Scripted], *workloads: str, rounds: int = 3, field: Field | None = None
    ) -> Rounds:
        field = field or Field(OURS, [name for name in engines if name != OURS], {})
        running: dict[str, Any] = dict(engines)
        return contest(running, field, Scale(dict.fromkeys(workloads, 1.0), rounds=rounds), self.told)

    def test_rounds_go_back_and_forth_and_leave_out_the_slow(self) -> None:
        self.run(self.engines(), "1x128")
        there, back = [OURS, "fast", "near"], ["near", "fast", OURS]
        assert self.log == [OURS, "fast", "near", "slow", "uneven", *back, *there]
        assert self.told.ran == ["1x128"]

    def test_who_is_too_slow_in_one_workload_runs_the_next(self) -> None:
        found = self.run(self.engines(), "1x128", "32x128")
        assert self.told.skipped == [("uneven", "1x128", "stopped with 25% of the tokens after 80 seconds")]
        assert self.told.found.parts == {"1x128": {"uneven": Part(0.25, 80.0, 128)}}
        assert "uneven" not in found["1x128"]
        assert self.log.count("uneven") == 1 + 3, "and there it is the fastest"

    def test_a_peer_may_take_twice_the_fastest_others_time_and_we_any(self) -> None:
        engines = self.engines()
        self.run(engines, "1x128", rounds=1)
        assert engines[OURS].limits == [None]
        assert engines["slow"].limits == [Limit(40.0, 80.0)], "and at least that one's time, whatever it promises"
        assert Field(OURS, ["a"], {}).limit({"a": [run_of(2.0)]}, "b") == Limit(2.0, 60.0)

    def test_one_alone_is_not_measured_against_itself(self) -> None:
        """Its second round takes much longer than its first: for want of a cache, or of luck."""
        engines = self.engines()
        alone = {OURS: engines[OURS], "peer": _Scripted("peer", {"1x128": [9.0, 300.0]}, self.log)}
        found = self.run(alone, "1x128", rounds=2)
        assert [run.seconds for run in found["1x128"]["peer"]] == [9.0, 300.0]
        assert alone["peer"].limits == [Limit(480.0, 480.0)] * 2
        assert self.told.skipped == []

    def test_one_that_is_stopped_in_a_later_round_keeps_those_before(self) -> None:
        engines = {
            OURS: _Scripted(OURS, 1.0, self.log),
            "a": _Scripted("a", {"1x128": [40.0, 200.0]}, self.log),
            "b": _Scripted("b", 45.0, self.log),
        }
        found = self.run(engines, "1x128")
        assert [run.seconds for run in found["1x128"]["a"]] == [40.0]
        assert [run.seconds for run in found["1x128"]["b"]] == [45.0] * 3
        assert self.told.found.parts == {}
        reason = "in round 2 stopped with 25% of the tokens after 90 seconds; its figures are of the rounds before"
        assert self.told.skipped == [("a", "1x128", reason)]

    def test_who_is_no_rival_stops_nobody(self) -> None:
        """The best of those that count is measured to its end, however fast one with other weights is."""
        field = Field(OURS, ["near", "slow", "uneven"], {})
        engines = self.engines()
        engines["fast"] = _Scripted("fast", 1.0, self.log)
        found = self.run(engines, "1x128", rounds=1, field=field)
        assert engines["near"].limits == [Limit(480.0, 480.0)]
        assert engines["slow"].limits == [Limit(50.0, 100.0)]
        assert set(found["1x128"]) == {OURS, "fast", "near", "slow", "uneven"}

    def test_an_engine_runs_the_workloads_that_it_is_for(self) -> None:
        field = Field(OURS, ["fast", "near"], {"near": ("32x128",)})
        found = self.run(self.engines(), "1x128", rounds=1, field=field)
        assert self.told.skipped[0][:2] == ("near", "1x128")
        assert "near" not in found["1x128"]
        assert "near" not in self.log

    def test_a_failure_is_told_and_the_others_go_on(self) -> None:
        self.run(self.engines(fails=True), "1x128")
        assert self.log[-2:] == [OURS, "fast"]
        assert ("near", "", "out of memory") in self.told.skipped

    def test_we_stay_however_slow(self) -> None:
        runs = {OURS: [run_of(50.0)], "a": [run_of(1.0)], "b": [run_of(2.0)], "stopped": []}
        assert Field(OURS, ["a", "b", "stopped"], {}).contenders(runs) == [OURS, "a"]


class TestProbe:
    """When a runner gives up by itself: the clock and what has been computed are set by hand."""

    @pytest.fixture
    def loop(self) -> Iterator[Any]:
        sys.path.insert(0, str(RUNNERS))
        try:
            yield importlib.import_module("serving_loop")
        finally:
            sys.path.remove(str(RUNNERS))
            sys.modules.pop("serving_loop", None)

    @pytest.mark.parametrize(
        ("seconds", "done", "stops"),
        [
            (19.0, 1, False),  # the probe is not over
            (39.0, 1, False),  # it may still be the fastest
            (41.0, 1, True),
            (41.0, 40, False),  # it promises 100 seconds: not certain to need more than 80
            (41.0, 0, False),  # nothing is known of its pace
            (81.0, 99, True),
        ],
    )
    def test_it_stops_where_another_one_was_faster(self, loop: Any, seconds: float, done: int, stops: bool) -> None:
        load = loop.Load([{"prompt": [1] * 99, "max_tokens": 1, "conversation": None}], False, loop.Limit(40.0, 80.0))
        arrivals = loop.Arrivals(load)
        arrivals._begin -= seconds
        arrivals._done = done
        if stops:
            with pytest.raises(loop.TooSlow) as stopped:
                list(arrivals.due())
            assert stopped.value.share == done / 100
        else:
            assert len(list(arrivals.due())) == 1


class TestScale:
    def test_each_round_has_its_own_tokens_and_the_same_lengths(self) -> None:
        scale = scale_of(True, "azure", None, None)
        first, second = scale.load("azure", 0), scale.load("azure", 1)
        assert [len(ask.prompt) for ask in first.asks] == [len(ask.prompt) for ask in second.asks]
        assert all(a.prompt != b.prompt for a, b in zip(first.asks, second.asks, strict=True))

    def test_no_workload_begins_as_another_one(self) -> None:
        """Otherwise one finds in a cache what another has left there, as far as an engine keeps it."""
        scale = scale_of(True, None, None, None)
        loads = [scale.load(name, number) for name in (*NAMES, PREFIX_HIT) for number in (0, 1)]
        loads += [scale.check_load(), scale.room_load()]
        assert len({load.asks[0].prompt[:16] for load in loads}) == len(loads)

    def test_all_of_it_beside_four_peers_takes_half_an_hour(self) -> None:
        scale = scale_of(False, None, None, None)
        assert estimated_seconds(scale, dict.fromkeys(scale.shares, 4), 5) <= 33 * 60
        few = scale_of(False, "1x128", None, None)
        assert estimated_seconds(few, {"1x128": 1}, 2) < 120

    def test_prefix_hits_come_one_after_the_other(self) -> None:
        asks = prefix_hits(0).asks
        assert len({ask.prompt[:SYSTEM_TOKENS] for ask in asks}) == 1
        assert [(ask.conversation, ask.turn) for ask in asks] == [(0, turn) for turn in range(len(asks))]

    def test_shortened_keeps_prompts(self) -> None:
        whole = workload("1x128")
        assert [(len(ask.prompt), ask.max_tokens) for ask in shortened(whole, 4).asks] == [(128, 32)]

    @pytest.mark.parametrize(("workloads", "share"), [("7x7", None), (None, "0"), (None, "two")])
    def test_a_wrong_choice_is_named(self, workloads: str | None, share: str | None) -> None:
        with pytest.raises(ConfigError, match=workloads or share):
            scale_of(False, workloads, share, None)
        assert scale_of(False, "azure", "0.5", None).shares == {"azure": 0.5}


class TestBench:
    """With fakes for all engines: 'same' computes what ours does, 'other' something else."""

    @pytest.fixture(autouse=True)
    def _fakes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def command(peer: Peer, folder: Path) -> list[str]:
            return [sys.executable, "-S", str(FAKE)]

        def opened(setting: bench.Setting, peer: Peer, kv_bytes: int, **more: object) -> PeerProcess:
            reason = peer.lacks(setting.folder)
            if reason is not None:
                raise PeerFailed(reason)
            step = 2 if peer.variant == "other" else 1
            return PeerProcess(command(peer, setting.folder), {"threads": 1, "variant": peer.variant, "step": step})

        monkeypatch.setattr(bench.Setting, "open", opened)
        monkeypatch.setitem(bench._SURE, "bfloat16", 0.2)  # the fake reference leads by 0.25

    def setting(self, workloads: str = "1x128") -> bench.Setting:
        return bench.Setting(Path("nowhere"), "bfloat16", scale_of(True, workloads, None, None))

    def measure(self, *peers: Peer, workloads: str = "1x128", ours: str = "") -> Found:
        found, setting, wanted = Found(), self.setting(workloads), [Peer(OURS, "", (), ours), *peers]
        bench.measure(setting, wanted, found, Kept(None, {}, {}))
        return found

    def test_what_can_not_be_had_is_skipped_loudly(self, capsys: pytest.CaptureFixture[str]) -> None:
        absent, dies = Peer("absent", "", ("absent/python",)), Peer("dies", "", (), "dies")
        found = self.measure(Peer("same", ""), absent, dies, workloads="1x128,at_once")
        assert set(found.rounds["1x128"]) == {OURS, "same"}
        reasons = {each.peer: each.reason for each in found.skipped}
        assert "make peers" in reasons["absent"]
        assert "it ended with 3" in reasons["dies"]
        errors = capsys.readouterr().err
        assert "SKIPPED absent" in errors
        assert "SKIPPED dies" in errors
        assert "4 engines, 1x128, at_once: about" in errors
        assert found.at_once.keys() == {OURS, "same"}

    def test_another_model_is_not_timed(self) -> None:
        found = self.measure(Peer("same", ""), Peer("other", "", (), "other"))
        assert set(found.rounds["1x128"]) == {OURS, "same"}
        assert "led by 0.25 logits" in found.skipped[0].reason
        assert found.agreement["same"].share == 1.0

    def test_ours_can_not_be_left_out(self) -> None:
        with pytest.raises(InvariantError, match="kvpager itself"):
            self.measure(ours="other")

    def test_the_report_names_who_is_missing(self) -> None:
        record = bench._report(self.setting(), self.measure(Peer("no", "", ("x",))))
        assert [each["peer"] for each in record["skipped"]] == ["no"]
        assert any("SKIPPED no" in line for line in record["checks"])

    def test_parts_are_put_together(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs of single workloads, and then one of both, which measures nothing more."""
        monkeypatch.setattr(bench, "chosen", lambda names: [Peer(OURS, ""), Peer("same", "")])
        ran: list[str] = []
        measure = bench.measure

        def watched(setting: bench.Setting, *rest: object) -> None:
            ran.extend(setting.scale.shares)
            measure(setting, *rest)

        monkeypatch.setattr(bench, "measure", watched)
        parts = {name: bench.run(quick=True, parts=str(tmp_path), workloads=name) for name in ("1x128", "at_once")}
        whole = bench.run(quick=True, parts=str(tmp_path), workloads="1x128,at_once")
        assert ran == ["1x128", "at_once"]
        values = {each["name"]: each["value"] for each in whole["results"]}
        for part in parts.values():
            assert all(values[each["name"]] == each["value"] for each in part["results"])
        assert {"peer_1x128_vs_best", "peer_requests_in_64_mib/same"} <= values.keys()
        with pytest.raises(ConfigError, match="precision bfloat16, not float32"):
            bench.run(quick=True, parts=str(tmp_path), workloads="1x128", precision="float32")

    def test_parts_of_other_code_or_requests_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench, "chosen", lambda names: [Peer(OURS, ""), Peer("same", "")])
        parts, path = str(tmp_path / "new" / "parts"), tmp_path / "new" / "parts" / "peers_1x128.json"
        bench.run(quick=True, parts=parts, workloads="1x128")
        assert json.loads(path.read_text())["setting"]["code"] == code_digest()
        again = bench.run(quick=True, parts=parts, workloads="1x128")
        assert again["results"], "the same is taken"

        monkeypatch.setattr(bench, "code_digest", lambda: "0123456789ab")
        with pytest.raises(ConfigError, match=f"{path} was measured with code {code_digest()}, not 0123456789ab; rem"):
            bench.run(quick=True, parts=parts, workloads="1x128")
        monkeypatch.undo()

        record = json.loads(path.read_text())
        for name in ("requests", "code"):
            old = {key: value for key, value in record["setting"].items() if key != name}
            path.write_text(json.dumps({**record, "setting": old}))
            with pytest.raises(ConfigError, match=f"measured with {name} unknown, not"):
                Kept(Path(parts), record["setting"], {"1x128": {}}).read("1x128", Found())

    @pytest.mark.parametrize("text", ["", "[]", '{"runs": {}}'])
    def test_a_part_that_is_none_is_named(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "peers_1x128.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"{path} is no workload that was kept .*; remove it"):
            Kept(tmp_path, {}, {"1x128": {}}).read("1x128", Found())

    def test_a_file_in_the_place_of_parts_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"--parts .*file can't be made: File exists"):
            Kept(tmp_path / "file", {}, {})

    def test_what_was_done_before_a_stop_is_kept(self, tmp_path: Path) -> None:
        found = Found(rounds={"1x128": {OURS: [run_of(1.0)]}}, parts={"1x128": {"slow": Part(0.25, 80.0, 128)}})
        Kept(tmp_path, {}, {"1x128": {}}).write("1x128", found)
        back = Found()
        assert Kept(tmp_path, {}, {"1x128": {}}).read("1x128", back)
        assert (back.rounds, back.parts) == (found.rounds, found.parts)


class TestCatalog:
    def test_every_script_is_there_and_none_hides_a_package(self) -> None:
        for peer in PEERS.values():
            script = Path(peer.command(Path("x"))[-1])
            assert script.exists(), script
            assert script.name.startswith("run_")

    def test_ours_always_runs(self) -> None:
        assert [peer.name for peer in chosen("vllm")] == [OURS, "vllm"]
        with pytest.raises(ConfigError, match="vlm"):
            chosen("vlm")
