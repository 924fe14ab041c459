"""Frames as plain lines, for whatever is not a terminal: one line for one frame, or a few that say more.

Knows figures (metrics/frame_figures.py); no control characters come out of here.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from kvpager.cli.palette import printable
from kvpager.config import format_size

if TYPE_CHECKING:
    from kvpager.metrics.frames import Frame

_MOST_ROWS = 20
FAULTS = {"demand": "demand", "minor": "minor", "major": "major", "copy_on_write": "copy on write"}


class Screen(Protocol):
    """Where frames go. A context; outside it nothing may be shown."""

    def show(self, frame: "Frame") -> None: ...

    def lost(self, why: str) -> None:
        """The server went away, and is tried again."""
        ...

    def __enter__(self) -> "Screen": ...

    def __exit__(self, *_: object) -> None: ...


class Lines:
    """A line for a frame, at most one in ``seconds``."""

    def __init__(self, stream: TextIO, form: Callable[["Frame"], str], *, seconds: float) -> None:
        self._stream, self._form, self._seconds = stream, form, seconds
        self._due = 0.0

    def show(self, frame: "Frame") -> None:
        if frame.time >= self._due:
            print(self._form(frame), file=self._stream, flush=True)
            self._due = frame.time + self._seconds

    def lost(self, why: str) -> None:
        print(f"{why}; trying again", file=sys.stderr, flush=True)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def as_json_line(frame: "Frame") -> str:
    """The figures, without the block map."""
    return json.dumps(frame.figures, separators=(",", ":"))


def format_line(frame: "Frame") -> str:
    now, pool, rates = frame.figures, frame.figures["pool"], frame.figures["rates"]
    alerts = "".join(f"   {alert_in_words(alert)}" for alert in now["alerts"])
    clock = time.strftime("%H:%M:%S", time.localtime(frame.time))
    return (
        f"{clock}  {now['running']} running, {now['waiting']} waiting   {blocks_in_words(pool)}   "
        f"{rates['tokens_per_second']:.1f} tokens/s   hit rate {rates['hit_rate']:.0%}   "
        f"{rates['faults_per_second']:.1f} faults/s   {now['preemptions']} preemptions{alerts}"
    )


def summary(frame: "Frame") -> list[str]:
    """What the live view shows, but the map."""
    now = frame.figures
    return [
        f"model     {printable(now['model'])}, up {now['uptime']:.0f} s",
        f"requests  {now['running']} running, {now['waiting']} waiting, {now['finished']} finished",
        f"blocks    {blocks_in_words(now['pool'])}",
        *(f"tier      {tier_in_words(tier)}" for tier in now["tiers"]),
        f"faults    {faults_in_words(now)}",
        f"moves     {migrations_in_words(now)}",
        f"pressure  {now['evictions']} pages dropped, {now['preemptions']} preemptions",
        f"prefix    {prefix_in_words(now)}",
        f"paged     {contiguous_in_words(now['contiguous'])}",
        *(f"alert     {alert_in_words(alert)}" for alert in now["alerts"]),
        *(f"          {owner_in_words(owner)}" for owner in now["owners"][:_MOST_ROWS]),
    ]


# -- parts, in words -----------------------------------------------------------------------------------------------


def blocks_in_words(pool: dict[str, int]) -> str:
    moving = f" + {pool['moving']} moving" if pool["moving"] else ""
    return (
        f"{pool['used']} used ({pool['shared']} shared) + {pool['cached']} cached{moving} + {pool['free']} free "
        f"= {pool['blocks']}"
    )


def tier_in_words(tier: dict[str, Any]) -> str:
    capacity = format_size(tier["capacity_bytes"]) if tier["capacity_bytes"] else "no limit of its own"
    state = "" if tier["state"] == "ok" else f", {printable(tier['state'])}"
    return (
        f"{printable(tier['name'])}: {format_size(tier['used_bytes'])} of {capacity}, {tier['pages']} pages, "
        f"{tier['hit_tokens']} tokens found, {tier['evicted']} pages dropped{state}"
    )


def faults_in_words(now: dict[str, Any]) -> str:
    return "   ".join(f"{words} {now['faults'][kind]['pages']}" for kind, words in FAULTS.items())


def migrations_in_words(now: dict[str, Any]) -> str:
    return (
        "   ".join(
            f"{printable(each['tier'], 12)} {each['demoted']} down, {each['promoted']} up" for each in now["migrations"]
        )
        or "no tier below the device"
    )


def prefix_in_words(now: dict[str, Any]) -> str:
    found, asked = now["prefix"]["hit_tokens"], now["prefix"]["prompt_tokens"]
    return f"{found} of {asked} prompt tokens found ({found / asked if asked else 0:.0%})"


def contiguous_in_words(view: dict[str, Any]) -> str:
    fits = ""
    if view["fits_paged"] is not None and view["fits_contiguous"] is not None:
        fits = f"; {view['fits_paged']} such requests fit, against {view['fits_contiguous']}"
    return (
        f"{format_size(view['paged_used_bytes'])}, {view['paged_waste_share']:.0%} empty; reserved in one piece it "
        f"would be {format_size(view['reserved_bytes'])}, {view['reserved_waste_share']:.0%} empty{fits}"
    )


def alert_in_words(alert: dict[str, Any]) -> str:
    return f"{alert['severity'].upper()} {printable(alert['name'])}: {printable(alert['summary'])}"


def owner_in_words(owner: dict[str, Any]) -> str:
    choice = f"[{owner['choice']}]" if owner["choice"] else ""
    return (
        f"{printable(owner['request'], 44)}{choice} {owner['state']}, {owner['tokens']} tokens in {owner['pages']} "
        f"pages ({owner['shared_pages']} shared), {owner['generated']} of {owner['max_tokens']} generated"
    )
