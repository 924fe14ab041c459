"""What somebody waits for: pages on their way up, and questions to a tier. Migration begins and completes them."""

from dataclasses import dataclass, field

from kvpager.errors import TierError
from kvpager.eviction.policy import History
from kvpager.tiers.tier import LowerTier, Page
from kvpager.types import ContentKey, TierKind


@dataclass(slots=True)
class Load:
    """Pages on their way up, page i into ``blocks[i]`` from ``tiers[i]``; ``errors[i]`` says why it did not come.

    ``histories``: by block, of those that came, where their tier judges. They are from before this use.
    ``ended``: when the last one came; ``tier_ended``: the last one so far of each tier.
    """

    pages: list[Page]
    blocks: list[int]
    tiers: list[TierKind]
    begun: float
    deadline: float
    errors: list[TierError | None]
    num_open: int
    ended: float | None = None
    tier_ended: dict[TierKind, float] = field(default_factory=dict)
    histories: dict[int, History] = field(default_factory=dict)
    is_late: bool = False

    @property
    def is_done(self) -> bool:
        """Whether no worker can touch the blocks any more."""
        return self.num_open == 0


@dataclass(slots=True)
class Probe:
    """A question to a tier that has to ask somebody else which pages it has."""

    tier: LowerTier
    keys: list[ContentKey]
    deadline: float
    is_done: bool = False
    found: list[bool] = field(default_factory=list)
    error: BaseException | None = None

    def run(self) -> None:
        self.found = self.tier.probe(self.keys)
