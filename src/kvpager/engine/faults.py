"""What pages that lay below the device have cost a request, or all of them."""

from dataclasses import dataclass

from kvpager.cache.fault import SequenceFaults


@dataclass(frozen=True, slots=True)
class Faults:
    """``major``: pages that steps read below the device, each once for every step that read it. ``bytes`` of them, and
    the ``stalled_seconds`` that steps waited for them; host memory is read in place, without a wait."""

    major: int = 0
    bytes: int = 0
    stalled_seconds: float = 0.0

    def __add__(self, other: "Faults") -> "Faults":
        return Faults(self.major + other.major, self.bytes + other.bytes, self.stalled_seconds + other.stalled_seconds)

    def plus(self, of_sequence: SequenceFaults) -> "Faults":
        """With those of a sequence so far."""
        if not of_sequence.pages:
            return self
        return self + Faults(of_sequence.pages, of_sequence.bytes, of_sequence.seconds)


NO_FAULTS = Faults()
