"""``kvpager replay``: the table, the files, and errors that say what to do."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpager.cli.replay_progress import plain_progress, progress_over
from kvpager.simulator.readers import write_arrays
from tests.simulator.forest import random_trace

Call = Callable[..., object]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "forest.npz"
    write_arrays(random_trace(3, requests=60), path)
    return str(path)


def test_a_row_for_each_capacity_and_policy(kvpager: Call, trace: str) -> None:
    ended = kvpager("replay", trace, "--capacity", "9,30%", "--policy", "lru,fifo,min")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[0][0] == "forest:"
    assert [row[2] for row in rows[4:10]] == ["lru", "fifo", "min"] * 2
    assert {row[0] for row in rows[4:10]} == {"9", "30%"}
    assert all(row[4] == "100.0%" for row in rows[4:10] if row[2] == "min")
    assert "sequential" in ended.out


def test_without_a_choice_it_compares_lru_with_the_optimum_at_three_capacities(kvpager: Call, trace: str) -> None:
    found = json.loads(kvpager("replay", trace, "--json", "-").out)["results"]
    assert {row["policy"] for row in found} >= {"lru", "min"}
    assert {row["capacity_asked"] for row in found} == {"1%", "5%", "20%"}


def test_json_says_what_the_table_says(kvpager: Call, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    ended = kvpager("replay", trace, "--capacity", "20", "--policy", "lru,min", "--json", str(target))
    assert "lru" in ended.out
    found = json.loads(target.read_text())
    assert found["trace"]["requests"] == 60
    lru, best = found["results"]
    assert (lru["policy"], best["policy"]) == ("lru", "min")
    assert lru["of_min"] == pytest.approx(lru["whole"]["tokens"] / best["whole"]["tokens"])
    assert f"{100 * lru['hit_ratio']:.1f}%" in ended.out


def test_tiers_show_hits_by_tier_and_moves(kvpager: Call, trace: str) -> None:
    ended = kvpager("replay", trace, "--tiers", "device=9,host=20", "--policy", "lru,min")
    assert ended.code == 0
    assert "device 9  host 20" in ended.out
    assert "demotions" in ended.out
    assert "the optimum of one tier of 29 blocks" in ended.out
    assert "exclusive tiers" in ended.out
    inclusive = kvpager("replay", trace, "--tiers", "device=9,host=20", "--policy", "lru", "--inclusive")
    assert "inclusive tiers" in inclusive.out


def test_overlapping_requests_flag_a_capacity_that_is_too_small(kvpager: Call, trace: str) -> None:
    slow = ("--concurrency", "--prefill-speed", "10", "--token-seconds", "0.1", "--policy", "lru")
    ended = kvpager("replay", trace, "--capacity", "12", *slow)
    assert "blocks are live on average" in ended.out
    assert "less than 3 times the live blocks" in ended.out
    roomy = kvpager("replay", trace, "--capacity", "100%", *slow)
    assert "less than 3 times" not in roomy.out


def test_a_capacity_in_bytes_needs_to_know_what_a_token_weighs(kvpager: Call, trace: str) -> None:
    refused = kvpager("replay", trace, "--capacity", "1MiB", "--policy", "lru")
    assert refused.code == 2
    weighed = kvpager("replay", trace, "--capacity", "8KiB", "--policy", "lru", "--bytes-per-token", "128")
    assert "8KiB" in weighed.out
    assert " 16 " in weighed.out
    model = kvpager("replay", trace, "--capacity", "1MiB", "--policy", "lru", "--model", "smollm2", "--json", "-")
    assert json.loads(model.out)["results"][0]["capacity"] == (1 << 20) // (2 * 30 * 3 * 64 * 2 * 4)


def test_a_model_folder_says_what_a_token_weighs(kvpager: Call, trace: str, model: str) -> None:
    config = json.loads((Path(model) / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per_value = {"float32": 4, "bfloat16": 2}[config.get("dtype") or config["torch_dtype"]]
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * per_value
    ended = kvpager("replay", trace, "--capacity", "1MiB", "--policy", "lru", "--model", model, "--json", "-")
    assert json.loads(ended.out)["results"][0]["capacity"] == (1 << 20) // (per_token * 4)


def test_the_page(kvpager: Call, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    ended = kvpager("replay", trace, "--capacity", "9,30", "--policy", "lru,min", "--html", str(target), "--here", "20")
    assert ended.code == 0
    page = target.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "you are here: 20" in page
    assert "lru at 20" in page


def test_lru_at_every_capacity_with_its_error(kvpager: Call, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    asked = ("--capacity", "9,30", "--policy", "lru", "--mrc")
    ended = kvpager("replay", trace, *asked, "--html", str(target))
    assert "off by 0.00 points on average" in ended.out  # so small a trace is looked at whole
    assert 'class="line sampled"' in target.read_text()
    found = json.loads(kvpager("replay", trace, *asked, "--json", "-").out)
    exact = {row["capacity"]: row["hit_ratio"] for row in found["results"]}
    curve = dict(zip(found["lru_curve"]["capacities"], found["lru_curve"]["hit_ratios"], strict=True))
    assert {capacity: curve[capacity] for capacity in exact if capacity in curve} == pytest.approx(
        {capacity: hit for capacity, hit in exact.items() if capacity in curve}
    )
    assert curve[max(curve)] > 0


def test_requests_can_come_when_those_of_another_trace_do(kvpager: Call, trace: str, tmp_path: Path) -> None:
    at_once = tmp_path / "arrivals.csv"
    lines = [f"2023-11-16 18:00:00.{number:07d},10,10" for number in range(3)]
    at_once.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    asked = ("--capacity", "100%", "--policy", "lru", "--concurrency")
    live = [
        json.loads(kvpager("replay", trace, *asked, *more, "--json", "-").out)["results"][0]["concurrency"]["mean_live"]
        for more in ((), ("--arrivals", str(at_once)))
    ]
    assert live[0] < live[1]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--policy", "lrru"], "unknown eviction policy 'lrru'; choose one of"),
        (["--policy", "lru,,min"], "has an empty part"),
        (["--capacity", "0%"], "capacity"),
        (["--tiers", "host=9"], "begin with the device"),
        (["--tiers", "device=9"], "name the tiers below it"),
        (["--tiers", "device=9,disk=9,host=9"], "in the order of speed"),
        (["--tiers", "device=9,hots=9"], "did you mean 'host'?"),
        (["--tiers", "device=9,host"], "with its capacity"),
        (["--inclusive"], "give --tiers"),
        (["--here", "9"], "give --html FILE too"),
        (["--html", "/nowhere/page.html"], "a folder that exists"),
        (["--json", "-", "--html", "-"], "same place"),
        (["--bytes-per-token", "0"], "at least 1"),
        (["--bytes-per-token", "1", "--model", "smollm2"], "give one of them"),
        (["--concurrency", "--prefill-speed", "0"], "prefill speed"),
        (["--format", "mooncak"], "mooncake"),
    ],
    ids=" ".join,
)
def test_errors_name_the_remedy(kvpager: Call, trace: str, argv: list[str], told: str) -> None:
    ended = kvpager("replay", trace, *argv)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_a_trace_of_arrivals_alone_is_refused_as_what_it_is(kvpager: Call, tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    ended = kvpager("replay", str(path), "--capacity", "5%")
    assert ended.code == 2
    assert "not what they read" in ended.err
    assert "--arrivals" in ended.err


def test_help_shows_shares_as_they_are_written(kvpager: Call) -> None:
    shown = kvpager("replay", "--help").out
    assert "1%,5%,2000,8GiB" in shown
    assert "%%" not in shown


def test_results_are_never_written_over_the_trace(kvpager: Call, trace: str) -> None:
    before = Path(trace).read_bytes()
    ended = kvpager("replay", trace, "--policy", "lru", "--json", trace)
    assert "is the trace itself" in ended.err
    assert Path(trace).read_bytes() == before


def test_damaged_lines_are_left_out_only_when_told_so(kvpager: Call, tmp_path: Path) -> None:
    lines = [{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}] * 3
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([json.dumps(lines[0]), "{broken", *map(json.dumps, lines[1:])]) + "\n")
    refused = kvpager("replay", str(path), "--capacity", "1", "--policy", "lru")
    assert refused.code != 0
    assert "2" in refused.err
    ended = kvpager("replay", str(path), "--capacity", "1", "--policy", "lru", "--skip-bad")
    assert ended.code == 0
    assert "1 damaged lines left out" in ended.out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_where_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_over(10, io.StringIO()) as watch:
        assert watch is None
    with progress_over(10, _Terminal()) as watch:
        assert watch is not None
        watch("lru at 5%", 5)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    plain = _Terminal()
    with progress_over(10, plain) as watch:
        assert watch is not None
        for done in range(10):
            watch("lru at 5%", done)
    assert plain.getvalue().splitlines() == [f"lru at 5%: {share} %" for share in (0, 30, 50, 80)]
    plain_progress(0, plain)("empty", 0)
