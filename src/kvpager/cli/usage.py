"""How answers were computed, as commands show it: by which attention, and what pages below the device took."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvpager.config import format_size

if TYPE_CHECKING:
    from kvpager.engine.request import Completion


def usage(answer: "Completion") -> dict[str, object]:
    """For JSON."""
    faults, selection = answer.faults, answer.selection
    selective: dict[str, object] = {}
    if selection.skipped_mass is not None:
        selective = {
            "selective_steps": selection.steps,
            "skipped_mass": round(selection.skipped_mass, 6),
            "digest_bytes": selection.digest_bytes,
            "kept_row_bytes": selection.kept_row_bytes,
        }
    return {
        "attention": answer.attention,
        "oversized": answer.is_oversized,
        "major_faults": faults.major,
        "fault_bytes": faults.bytes,
        "stalled_seconds": round(faults.stalled_seconds, 6),
        **selective,
    }


def usage_in_words(answers: "Iterable[Completion]") -> str:
    """What is not the rule, for the end of a summary: nothing where all pages fitted and attention was exact."""
    answers = list(answers)
    said = ""
    oversized = [answer for answer in answers if answer.is_oversized]
    if oversized:
        faults = sum((answer.faults for answer in oversized[1:]), oversized[0].faults)
        said += (
            f"; {len(oversized)} did not fit on the device: {faults.major} major faults, {format_size(faults.bytes)} "
            f"read below it, {faults.stalled_seconds:.1f} s waited"
        )
    approximate = sorted({answer.attention for answer in answers} - {"exact"})
    if approximate:
        said += f"; approximate attention: {', '.join(approximate)}"
    selections = [answer.selection for answer in answers if answer.selection.steps]
    if selections:
        skipped = sum(each.skipped for each in selections) / sum(each.steps for each in selections)
        said += f", which left out an estimated {skipped:.1%} of the attention"
    return said
