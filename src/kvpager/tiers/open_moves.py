"""The jobs that are under way between the device and the tiers: who has been sent where, until it is completed.

Knows a mover (tiers/mover.py) and what each job moves; no tier's books.
"""

from collections.abc import Iterator

from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.load import Load, Probe
from kvpager.tiers.move import Move, Transfer
from kvpager.tiers.mover import Job, Mover, run_job
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey

_BATCH_BYTES = 8 << 20  # moved by one job: large enough for few system calls, small enough that a load starts soon

End = DevicePages | LowerTier


class OpenMoves:
    """``batch_pages``: that one job moves at most."""

    def __init__(self, device: DevicePages, mover: Mover) -> None:
        self.mover = mover
        self.batch_pages = max(1, _BATCH_BYTES // device.page_bytes)
        self._device = device
        self._open: dict[int, Move] = {}  # by id

    def __iter__(self) -> Iterator[Move]:
        return iter(self._open.values())

    @property
    def num_jobs(self) -> int:
        """Moves and questions that nobody has collected yet."""
        return self.mover.num_open

    @property
    def num_demotions(self) -> int:
        """Moves that hold blocks of the device, to copy them down."""
        return sum(move.source is self._device for move in self)

    def held_blocks(self) -> list[int]:
        """Blocks that demotions hold, one entry for each."""
        moves = [move for move in self if move.source is self._device]
        return [transfer.source.index for move in moves for transfer in move.transfers]

    def moving_keys(self) -> set[ContentKey]:
        """Pages that are under way in any direction."""
        return {transfer.page.key for move in self for transfer in move.transfers}

    def submit(self, source: End, target: End, transfers: list[Transfer]) -> None:
        lane = f"{source.name} load" if target is self._device else f"{target.name} store"
        for at in range(0, len(transfers), self.batch_pages):
            move = Move(source, target, transfers[at : at + self.batch_pages])
            self._open[id(move)] = move
            self.mover.submit(lane, move)

    def run_now(self, source: End, target: End, transfers: list[Transfer]) -> Move:
        """In this thread. It has still to be completed, as any other."""
        move = Move(source, target, transfers)
        self._open[id(move)] = move
        run_job(move)
        return move

    def ask(self, probe: Probe) -> None:
        self.mover.submit(f"{probe.tier.name} load", probe)

    def collect(self, timeout: float = 0.0) -> list[Job]:
        """Those that have ended; waits up to ``timeout`` seconds for the first."""
        return self.mover.collect(timeout)

    def ended(self, move: Move) -> None:
        del self._open[id(move)]

    def come_from(self, tier: LowerTier, load: Load) -> bool:
        """Whether pages of a load are still on their way from a tier."""
        return any(move.source is tier and move.has_load(load) for move in self)
