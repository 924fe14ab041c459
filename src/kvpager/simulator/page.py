"""One page with the curves of a comparison, complete in one file: no script, no font, nothing loaded from anywhere.

It shows what the table and the JSON of the same comparison say: hit ratios over capacities under the optimum, hits by
tier, how old pages were when they were hit and when they went, and every number in a table below.
"""

from collections.abc import Callable, Sequence
from html import escape

from kvpager.simulator.ages import NUM_BUCKETS, bucket_start
from kvpager.simulator.comparison import Row
from kvpager.simulator.page_charts import Bar, Curve, bars_chart, curves_chart, histogram_chart
from kvpager.simulator.page_style import STYLE
from kvpager.simulator.replay import OPTIMUM
from kvpager.simulator.report import Hits, ReplayResult
from kvpager.simulator.sampled_lru import SampledLRU
from kvpager.simulator.trace import Trace

_HitsOf = Callable[[ReplayResult], Hits]
_TEXTS = ("tiers", "policy")
_NUM_STYLES = 6  # colours of page_style.py; beyond them lines are dashed as well


def replay_page(trace: Trace, rows: Sequence[Row], here: int | None = None, sampled: SampledLRU | None = None) -> str:
    """``here``: a capacity in blocks to mark, and to show the ages at. ``sampled``: a line for LRU between the others'
    capacities."""
    styles = _styles(rows)
    single = [row for row in rows if not row.is_tiered]
    tiered = [row for row in rows if row.is_tiered]
    about = (
        f"{trace.num_requests:,} requests, {trace.num_references:,} references to {trace.num_blocks:,} distinct blocks "
        f"of {trace.page_tokens:,} tokens."
    )
    sections = [
        _curves(single, styles, here, sampled),
        _tiers(tiered),
        _ages(single or tiered, here),
        _tables(single, tiered),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(trace.name)}: replay</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(trace.name)}</h1>
<p class="about">{escape(about)} {escape(_setting(rows))}</p>
{"".join(sections)}
</main>
</body>
</html>
"""


def _styles(rows: Sequence[Row]) -> dict[str, str]:
    """The class of each policy; the optimum has one of its own."""
    names = [name for name in dict.fromkeys(row.result.policy for row in rows) if name != OPTIMUM]
    found = {name: f"s{at % _NUM_STYLES}{' dashed' if at >= _NUM_STYLES else ''}" for at, name in enumerate(names)}
    return {**found, OPTIMUM: "best"}


def _setting(rows: Sequence[Row]) -> str:
    together = next((row.result.concurrency for row in rows if row.result.concurrency), None)
    if together is None:
        return "Replayed in sequence: each request is done before the next one comes."
    return (
        f"Requests overlap: {together.mean_live:,.0f} blocks are live on average, {together.peak_live:,} at most. The "
        "optimum is that of the sequential replay."
    )


# -- sections ------------------------------------------------------------------------------------------------------


def _curves(rows: Sequence[Row], styles: dict[str, str], here: int | None, sampled: SampledLRU | None) -> str:
    if not rows:
        return ""
    ticks = {float(row.result.capacity): row.label for row in rows}
    label = ticks.get(float(here)) if here is not None else None
    marked = None if here is None else (float(here), f"you are here: {label or f'{here:,} blocks'}")
    panels = []
    for title, hits in (("All requests", _whole), ("Second half, once a policy has learned", _half)):
        curves = _sorted_curves(rows, styles, hits)
        if sampled is not None and hits is _whole:
            curves.append(_sampled_curve(sampled, min(ticks), max(ticks)))
        chart = curves_chart(f"Hit ratio by capacity. {title}", curves, sorted(ticks.items()), marked)
        panels.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    return f"""<section><h2>Hit ratio by capacity</h2>
<p>Share of prompt tokens that were in the cache. The dashed line is the offline optimum, which knows the future.
{escape(_about_sample(sampled))}</p>
<div class="panels">{"".join(panels)}</div></section>"""


def _about_sample(sampled: SampledLRU | None) -> str:
    if sampled is None:
        return ""
    return (
        f"The thin line is LRU from a sample of {sampled.rate:.1%} of the blocks, off by "
        f"{100 * sampled.mean_error:.2f} points on average and {100 * sampled.largest_error:.2f} at most."
    )


def _sampled_curve(sampled: SampledLRU, low: float, high: float) -> Curve:
    points = tuple(
        (float(capacity), hit, "")
        for capacity, hit in zip(sampled.capacities, sampled.hit_ratios, strict=True)
        if low <= capacity <= high
    )
    return Curve("", "sampled", points)


def _whole(result: ReplayResult) -> Hits:
    return result.whole


def _half(result: ReplayResult) -> Hits:
    return result.second_half


def _sorted_curves(rows: Sequence[Row], styles: dict[str, str], hits: _HitsOf) -> list[Curve]:
    curves = []
    for name, style in styles.items():
        mine = sorted((row for row in rows if row.result.policy == name), key=lambda row: row.result.capacity)
        points = tuple(
            (
                float(row.result.capacity),
                hits(row.result).ratio,
                f"{name} at {row.label}: {hits(row.result).ratio:.1%}",
            )
            for row in mine
        )
        if points:
            curves.append(Curve("optimum" if name == OPTIMUM else name, style, points))
    return curves


def _tiers(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    bars, names = [], list[str]()
    for row in rows:
        levels = row.result.levels
        if row.result.policy == OPTIMUM:
            parts: tuple[tuple[str, str, float], ...] = (("one tier as large as all", "best", row.result.whole.ratio),)
        else:
            names = [level.name for level in levels]
            parts = tuple((level.name, f"t{at}", level.hits.ratio) for at, level in enumerate(levels))
        bars.append(Bar("optimum" if row.result.policy == OPTIMUM else row.result.policy, parts))
    kind = "inclusive" if any(row.result.inclusive for row in rows) else "exclusive"
    chart = bars_chart("Hit ratio by tier", bars)
    keys = "".join(
        f'<span class="key"><i class="fill t{at}"></i>{escape(name)}</span>' for at, name in enumerate(names)
    )
    return f"""<section><h2>Hits by tier</h2>
<p>Tiers {escape(rows[0].label)} blocks, {kind}. The optimum is that of one tier as large as all together. {keys}</p>
<figure class="wide">{chart}</figure></section>"""


def _ages(rows: Sequence[Row], here: int | None) -> str:
    shown = [row for row in rows if row.result.levels[0].age_at_eviction is not None]
    if here is not None:
        shown = [row for row in shown if row.result.capacity == here] or shown[:1]
    if not shown:
        return ""
    used = [at for row in shown for at in range(NUM_BUCKETS) if row.result.age_at_hit[at] or _gone(row)[at]]
    if not used:
        return ""
    labels = [_age_label(at) for at in range(NUM_BUCKETS)]
    panels = []
    for row in shown:
        name = f"{row.result.policy} at {row.label}"
        series = [("hits", "t0", row.result.age_at_hit), ("evictions", "t1", _gone(row))]
        chart = histogram_chart(f"Ages under {name}", labels, series, (min(used), max(used)))
        panels.append(f"<figure><figcaption>{escape(name)}</figcaption>{chart}</figure>")
    return f"""<section><h2>Age at hit against age at eviction</h2>
<p>Seconds since a page had been asked for before. Where pages go at ages at which others are still hit, more room or
another order would have kept some of them. <span class="key"><i class="fill t0"></i>hits</span>
<span class="key"><i class="fill t1"></i>evictions</span></p>
<div class="panels small">{"".join(panels)}</div></section>"""


def _gone(row: Row) -> tuple[int, ...]:
    return row.result.levels[0].age_at_eviction or (0,) * NUM_BUCKETS


def _age_label(bucket: int) -> str:
    start = bucket_start(bucket)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if start >= unit:
            return f"{start / unit:.0f} {name}"
    return f"{start} s" if start else "< 1 s"


# -- the numbers ---------------------------------------------------------------------------------------------------


def _tables(single: Sequence[Row], tiered: Sequence[Row]) -> str:
    return "<section><h2>The numbers</h2>" + _capacity_table(single) + _tier_table(tiered) + "</section>"


def _capacity_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    head = ["capacity", "blocks", "policy", "hit ratio", "of optimum", "of LRU"]
    head += ["second half", "of optimum", "of LRU", "net of shared head", "evictions"]
    lines = [
        (
            row.label,
            f"{row.result.capacity:,}",
            row.result.policy,
            *_shares(row),
            f"{row.result.net.ratio:.1%}",
            f"{row.result.evictions:,}",
        )
        for row in rows
    ]
    return _table(head, lines)


def _tier_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    head = ["tiers", "policy", "hit ratio", "of optimum", "of LRU", "second half", "of optimum", "of LRU"]
    head += ["by tier", "demotions", "promotions"]
    lines = []
    for row in rows:
        levels = row.result.levels
        by_tier = " + ".join(f"{level.hits.ratio:.1%}" for level in levels)
        stored, promoted = (sum(getattr(level, name) for level in levels) for name in ("stored", "promoted"))
        lines.append((row.label, row.result.policy, *_shares(row), by_tier, f"{stored:,}", f"{promoted:,}"))
    return _table(head, lines)


def _shares(row: Row) -> tuple[str, ...]:
    whole, half = f"{row.result.whole.ratio:.1%}", f"{row.result.second_half.ratio:.1%}"
    shares = [row.of_optimum, row.of_lru, row.half_of_optimum, row.half_of_lru]
    texts = ["" if share is None else f"{share:.1%}" for share in shares]
    return (whole, *texts[:2], half, *texts[2:])


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Texts to the left, numbers to the right."""
    kinds = [' class="text"' if name in _TEXTS else "" for name in head]
    top = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    rows = ["".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(line, kinds, strict=True)) for line in lines]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
