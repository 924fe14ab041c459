"""What selective attention left out of a request, or of all of them, and what it keeps in memory for that."""

from dataclasses import dataclass

from kvpager.attention.selective import SelectiveState
from kvpager.cache.attention_state import AttentionState


@dataclass(frozen=True, slots=True)
class Selection:
    """``steps`` that selected pages; ``skipped``: the shares of the attention that they left out, estimated, added up.
    ``digest_bytes`` of the pages' digests, and ``kept_row_bytes`` of selected pages that have no block."""

    steps: int = 0
    skipped: float = 0.0
    digest_bytes: int = 0
    kept_row_bytes: int = 0

    @classmethod
    def of(cls, state: AttentionState | None) -> "Selection":
        """Of one sequence so far."""
        if not isinstance(state, SelectiveState):
            return NO_SELECTION
        return cls(state.num_steps, state.skipped_sum, state.num_digest_bytes, state.num_kept_bytes)

    @property
    def skipped_mass(self) -> float | None:
        """Share of the attention that a step left out on average, estimated; None where none selected."""
        return self.skipped / self.steps if self.steps else None

    def __add__(self, other: "Selection") -> "Selection":
        """Of two requests together."""
        return Selection(
            self.steps + other.steps,
            self.skipped + other.skipped,
            self.digest_bytes + other.digest_bytes,
            self.kept_row_bytes + other.kept_row_bytes,
        )

    def then(self, later: "Selection") -> "Selection":
        """Of one request: its memory is that of the larger of two sequences, one after the other."""
        if not later.steps and not later.digest_bytes:
            return self
        return Selection(
            self.steps + later.steps,
            self.skipped + later.skipped,
            max(self.digest_bytes, later.digest_bytes),
            max(self.kept_row_bytes, later.kept_row_bytes),
        )


NO_SELECTION = Selection()
