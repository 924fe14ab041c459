"""Figures as a page, as tables in Markdown and as a picture: complete, and losses are shown as what they are."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvpager.bench.filled_pages import filled, named_in
from kvpager.bench.peer_speeds import measures_table, speeds_of, speeds_picture, speeds_table
from kvpager.bench.recorded import Figure, Report, number_text, read_reports
from kvpager.bench.result_html import result_page

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs/figures"

REPORT = Report(
    "speed",
    "a <machine>",
    7,
    (
        Figure("fast", 1.5, "ratio", 1.0, "at_least", True, (1.4, 1.625)),
        Figure("slow", 0.25, "ratio", 1.0, "at_least", False),
        Figure("waste", 0.5, "share", 0.02, "at_most", False),
        Figure("none", 0.0, "s", 0.0, "at_most", True),
        Figure("broken", float("nan"), "share", 0.5, "at_least", False),
        Figure("bytes", 1234567.0, "bytes"),
    ),
    {"python": "3.11"},
    ("tokens are equal & bytes too",),
    "2026-01-02",
    "kvpager bench speed",
)
PEERS = Report(
    "peers",
    "a machine",
    0,
    tuple(
        Figure(f"peer_{workload}_tokens_per_second/{engine}", value, "tokens/s")
        for workload, speeds in {
            "1x128": {"llama.cpp": 80.0, "kvpager": 60.0, "vllm": 40.0},
            "32x128": {"kvpager": 500.0, "vllm": 400.0},
            "odd": {"kvpager": 1.0},
        }.items()
        for engine, value in speeds.items()
    ),
    command="kvpager bench peers",
    shares={"1x128": 1.0, "32x128": 0.25},
)


class TestPage:
    page = result_page([REPORT])

    def test_it_says_everything(self) -> None:
        facts = ("a &lt;machine&gt;", "python 3.11", "2026-01-02", "kvpager bench speed", "2 of 5 met", "1,234,567")
        for text in facts:
            assert text in self.page
        assert "<dt>seed</dt><dd>7</dd>" in self.page
        assert "<li>tokens are equal &amp; bytes too</li>" in self.page
        assert "1.4 to 1.625" in self.page

    def test_bars_say_in_words_what_they_show(self) -> None:
        said = re.findall(r'<svg class="bar"[^>]*role="img" aria-label="([^"]*)"', self.page)
        assert said == [
            "fast: 1.5 times the target, met",
            "slow: 0.25 times the target, missed",
            "waste: 25 times the target, missed",
        ]
        widths = re.findall(r'<rect class="m\w+" y="2" width="([\d.]+)"', self.page)
        assert widths == ["135.0", "22.5", "180.0"]  # the target is at 90, twice of it at the end

    def test_nothing_is_loaded_and_both_schemes_are_there(self) -> None:
        assert not re.search(r"https?://|<script|<link|<img|url\(|@import", self.page)
        assert "prefers-color-scheme: dark" in self.page
        assert '<html lang="en">' in self.page

    def test_it_is_well_formed(self) -> None:
        ElementTree.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>", "", self.page))


class TestTables:
    def test_a_place_is_filled_again_and_again(self) -> None:
        page = "a\n<!-- figures speed -->\n<!-- /figures -->\nb\n<!-- figures other -->\nold\n<!-- /figures -->\n"
        once = filled(page, [REPORT])
        assert filled(once, [REPORT]) == once
        assert named_in(once) == ["speed", "other"]
        assert "| `fast` | 1.5 | ratio | ≥ 1 | met | 1.4 to 1.625 |" in once
        assert "| `slow` | 0.25 | ratio | ≥ 1 | **missed** |  |" in once
        assert "2 of 5 targets met.\n**Missed: `slow`, `waste`, `broken`.**" in once
        assert "Again: `kvpager bench speed`." in once
        assert "<!-- figures other -->\nNo run is on record; `kvpager bench other` makes one.\n" in once
        assert "old" not in once

    def test_many_figures_without_a_target_are_folded_up(self) -> None:
        many = Report("speed", "a machine", 0, (REPORT.figures[0], *(Figure(f"f{i}", i, "s") for i in range(30))))
        page = filled("<!-- figures speed -->\n<!-- /figures -->\n", [many])
        open_part, folded = page.split('<details markdown="1">\n<summary>30 more figures</summary>\n\n')
        assert "`fast`" in open_part
        assert "`f0`" not in open_part
        assert folded.count("| `f") == 30

    def test_where_a_peer_is_faster_the_table_says_so(self) -> None:
        lines = speeds_table(speeds_of([PEERS])).splitlines()
        assert lines[0] == "| tokens/s | kvpager | llama.cpp | vllm | ours over the best peer's |"
        assert lines[2] == "| 1 stream, 128 + 128 tokens | 60 | **80** | 40 | 0.75: **llama.cpp is faster** |"
        assert lines[3] == "| 32 requests of 128 + 128 (25% of them) | **500** | - | 400 | 1.25 |"
        assert lines[4] == "| odd | **1** | - | - | - |"
        page = filled("<!-- peers -->\n<!-- /peers -->\n", [REPORT, PEERS])
        assert lines[2] in page
        assert "Again: `kvpager bench peers`." in page
        assert "No run is on record" in filled(page, [REPORT])

    def test_one_that_was_stopped_stands_in_brackets(self) -> None:
        stopped = (
            Figure("peer_32x128_tokens_per_second_until_stopped/slow", 30.0, "tokens/s"),
            Figure("peer_32x128_stopped_at/slow", 0.25, "share"),
        )
        found = speeds_of([replace(PEERS, figures=(*PEERS.figures, *stopped))])
        lines = speeds_table(found).splitlines()
        assert lines[0] == "| tokens/s | kvpager | llama.cpp | vllm | slow | ours over the best peer's |"
        assert lines[3] == "| 32 requests of 128 + 128 (25% of them) | **500** | - | 400 | (30 for 25%) | 1.25 |"
        assert lines[-1].startswith("In brackets: the engine was stopped")
        assert "In brackets" not in speeds_table(speeds_of([PEERS]))
        assert speeds_picture(found) == speeds_picture(speeds_of([PEERS])), "no bar for what was not measured whole"

    def test_what_else_is_measured_is_a_table_beside_it(self) -> None:
        figures = (
            Figure("peer_greedy_agreement/vllm", 0.25, "share"),
            Figure("peer_requests_in_64_mib/kvpager", 16.0, "requests"),
            Figure("peer_1x128_ttft_p50/vllm", 5.0, "ms"),
        )
        report = replace(PEERS, figures=(*PEERS.figures, *figures))
        assert measures_table([report], ["kvpager", "vllm"]).splitlines() == [
            "| | kvpager | vllm |",
            "|---|---|---|",
            "| requests of 128 + 32 tokens at once in 64 MiB of KV | 16 | - |",
            "| tokens before an answer first differs from Hugging Face's greedy ones in float32, % | - | 25 |",
        ]
        assert measures_table([PEERS], ["kvpager"]) == ""
        assert "| requests of 128 + 32" in filled("<!-- peers -->\n<!-- /peers -->\n", [report])


class TestPicture:
    picture = speeds_picture(speeds_of([PEERS]))

    def test_it_is_an_image_in_words_too(self) -> None:
        root = ElementTree.fromstring(self.picture)
        described = root.find("{http://www.w3.org/2000/svg}desc")
        assert described is not None
        assert described.text is not None
        assert "1 stream, 128 + 128 tokens: kvpager 60, llama.cpp 80, vllm 40" in described.text

    def test_each_workload_has_its_own_scale(self) -> None:
        bars = re.findall(r'<rect class="(ours|peer)" [^>]*width="([\d.]+)"', self.picture)
        lengths = [float(width) for _, width in bars]
        assert [style for style, _ in bars] == ["ours", "peer", "peer", "ours", "peer", "ours"]
        assert lengths[0] / lengths[1] == pytest.approx(60 / 80, abs=0.01)
        assert max(lengths[:3]) == lengths[3] == lengths[5]

    def test_both_schemes_and_nothing_from_elsewhere(self) -> None:
        assert "prefers-color-scheme: dark" in self.picture
        assert not re.search(r"href|<script|url\(|@import", self.picture)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0123456, "0.01235"), (999.96, "1,000"), (1234.5, "1,234"), (3.0, "3"), (float("inf"), "inf")],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


# -- what is committed ---------------------------------------------------------------------------------------------


def test_the_pages_show_what_is_on_record() -> None:
    """After a new result: make docs."""
    reports = read_reports(FIGURES)
    for page in (ROOT / "docs/benchmarks.md", ROOT / "README.md"):
        text = page.read_text(encoding="utf-8")
        if page.name != "README.md" or "<!-- peers -->" in text:
            assert filled(text, reports) == text
    assert {report.name for report in reports} <= set(named_in((ROOT / "docs/benchmarks.md").read_text("utf-8")))


def test_the_picture_shows_what_is_on_record() -> None:
    speeds = speeds_of(read_reports(FIGURES))
    picture = FIGURES / "peers.svg"
    assert picture.exists() == bool(speeds)
    assert not speeds or picture.read_text(encoding="utf-8") == speeds_picture(speeds)
