"""Pages on their way up: loads, and questions to tiers that must ask somebody else. Begun, completed, or too late.

A load that is late is done for nobody: its tier is told so, but whoever began it holds the blocks until no worker can
touch them any more. A question that is late counts as answered with no.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvpager.errors import TierError
from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.load import Load, Probe
from kvpager.tiers.move import Move, Transfer
from kvpager.tiers.open_moves import OpenMoves
from kvpager.tiers.tier import LowerTier, Page, Slot
from kvpager.types import Clock, ContentKey, TierKind


class LoadWatcher(Protocol):
    """Is told of every page that has come from a tier into a block of the device."""

    def loaded(self, page: Page, tier: TierKind, block: int) -> None: ...


class Promotions:
    """``deadline``: seconds of a load or a question; None: as many as it takes. ``moving_bytes``: of loads under way.
    ``promoted``: pages that came, by tier. ``late``: loads that did not come in time."""

    def __init__(
        self,
        device: DevicePages,
        tiers: Sequence[LowerTier],
        moves: OpenMoves,
        clock: Clock,
        deadline: float | None,
    ) -> None:
        self._device = device
        self._tiers = tiers
        self._moves = moves
        self.clock = clock
        self._deadline = deadline
        self._loads: list[Load] = []
        self._probes: list[Probe] = []
        self.moving_bytes = 0
        self.late = 0
        self.promoted = Counter[TierKind]()
        self.watcher: LoadWatcher | None = None

    @property
    def asked(self) -> list[LowerTier]:
        """Tiers that have a question to answer."""
        return [probe.tier for probe in self._probes]

    def load(self, pages: Sequence[Page], blocks: Sequence[int]) -> Load:
        """Begins to fill blocks with pages. REQUIRES: the caller holds the blocks until the load is done."""
        now = self.clock()
        load = Load(list(pages), list(blocks), [], now, self._until(now), [None] * len(pages), len(pages))
        batches: dict[TierKind, list[Transfer]] = {}
        for place, (page, block) in enumerate(zip(pages, blocks, strict=True)):
            found = self._hold_lower(page.key)
            load.tiers.append(TierKind.NONE if found is None else found[0].kind)
            if found is None:
                load.errors[place] = TierError("the page is not there any more")
                load.num_open -= 1
                continue
            tier, source = found
            target = self._device.landing(block, page.key, page.group)
            batches.setdefault(tier.kind, []).append(Transfer(page, source, target, load, place))
        self.moving_bytes += load.num_open * self._device.page_bytes
        self._loads.append(load)
        for tier in self._tiers:
            if tier.kind in batches:
                self._moves.submit(tier, self._device, batches[tier.kind])
        return load

    def probe(self, tier: LowerTier, keys: Sequence[ContentKey]) -> Probe:
        """Asks a tier about keys it does not know; the answer is in its books once the probe is done."""
        probe = Probe(tier, list(keys), self._until(self.clock()))
        self._probes.append(probe)
        self._moves.ask(probe)
        return probe

    def complete(self, move: Move) -> None:
        """A move up has ended. REQUIRES: its error is spread over its transfers."""
        source, now = next(tier for tier in self._tiers if tier is move.source), self.clock()
        for transfer in move.transfers:
            load, error = transfer.load, transfer.error
            assert load is not None
            source.complete_load(transfer.source, error)
            if error is None and (history := source.history(transfer.page.key)) is not None:
                load.histories[load.blocks[transfer.place]] = history
            if error is None and self.watcher is not None:
                self.watcher.loaded(transfer.page, source.kind, load.blocks[transfer.place])
            load.errors[transfer.place] = error
            load.num_open -= 1
            load.tier_ended[source.kind] = now
            if load.is_done:
                load.ended = now
        came = [transfer.page.key for transfer in move.transfers if transfer.error is None]
        source.touch(came)  # after their histories were read, which are from before this use
        self.promoted[source.kind] += len(came)
        self.moving_bytes -= len(move.transfers) * self._device.page_bytes

    def complete_probe(self, probe: Probe) -> None:
        if probe.is_done:
            return  # too late: its tier was told so
        probe.is_done = True
        if probe.error is not None:
            probe.tier.blame(f"a question failed: {probe.error}")
        probe.tier.learn(probe.keys, None if probe.error is not None else probe.found)

    def blame_the_late(self) -> None:
        """Tells tiers of what has not come in time, and forgets what is done."""
        now = self.clock()
        for load in self._loads:
            if now > load.deadline and not load.is_late and not load.is_done:
                load.is_late = True
                self.late += 1
                for tier in self._tiers:
                    if self._moves.come_from(tier, load):
                        tier.blame("a load did not come back in time")
        for probe in self._probes:
            if now > probe.deadline:
                probe.is_done = True
                probe.tier.blame("a question was not answered in time")
                probe.tier.learn(probe.keys, None)
        self._loads = [load for load in self._loads if not load.is_done]
        self._probes = [probe for probe in self._probes if not probe.is_done]

    def _until(self, now: float) -> float:
        return float("inf") if self._deadline is None else now + self._deadline

    def _hold_lower(self, key: ContentKey) -> tuple[LowerTier, Slot] | None:
        """The nearest tier that has a page and may be read, and its slot."""
        for tier in self._tiers:
            if tier.contains(key) and (slot := tier.prepare_load(key)) is not None:
                return tier, slot
        return None
