"""What the tiers below have of the pages of running sequences: held where a sequence reads it, forgotten where nobody
can ever ask for it again.

    PageCopy     one page as a tier knows it, under its content key or under a *private* one
      owners     sequences that know of it: forks share it
      users      those of them whose page lies there now, so that its slot is held

A page that must not be found by content (computed after attention became approximate, or beyond what is published) goes
down under a private key: a number that is given out once, hashed with a nonce of this process. Once its last owner has
gone the tiers forget it. Moves no bytes and knows no blocks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvpager.errors import InvariantError, TierError
from kvpager.prefix.hashing import digest_fields
from kvpager.tiers.migration import Migration
from kvpager.tiers.tier import LowerTier, Page, Slot
from kvpager.types import ContentKey, NodeId, TierKind

_DOMAIN = b"kvpager.private"


@dataclass(slots=True, eq=False)
class PageCopy:
    """``node``: of the prefix index, for sequences that have published the page. ``error``: why it can't be read."""

    page: Page
    is_private: bool
    node: NodeId | None = None
    owners: int = 1
    users: int = 0
    tier: LowerTier | None = None  # that holds it for its users
    slot: Slot | None = None
    error: TierError | None = None


class PageCopies:
    """Over the tiers of ``migration``. ``nonce``: random bytes, different in every process that shares a tier."""

    def __init__(self, migration: Migration, nonce: bytes) -> None:
        self._migration = migration
        self._nonce = nonce
        self._given_out = 0
        self._unwanted: set[ContentKey] = set()  # private pages that move, to be forgotten when they have come to rest
        self.num_held: Counter[TierKind] = Counter()

    @cached_property
    def tiers(self) -> "Sequence[LowerTier]":
        """Those whose pages can be used where they lie."""
        return [tier for tier in self._migration.tiers if not tier.why_not_in_place()]

    @cached_property
    def private_parent(self) -> ContentKey:
        """What all private pages of this process hang under, though it is nowhere."""
        return digest_fields([_DOMAIN, self._nonce])

    def private(self, group: int) -> PageCopy:
        """A new page that nobody can find. It hangs under none, so the tiers drop such pages in any order."""
        self._given_out += 1
        key = digest_fields([_DOMAIN, self._nonce, self._given_out.to_bytes(8, "little")])
        return PageCopy(Page(key, self.private_parent, group), is_private=True)

    def is_there(self, copy: PageCopy) -> bool:
        """Whether a sequence could use it now."""
        return copy.slot is not None or any(tier.contains(copy.page.key) for tier in self.tiers)

    def use(self, copy: PageCopy) -> bool:
        """One more sequence whose page lies there. False, with nothing changed, where no tier has it."""
        if copy.slot is None:
            for tier in self.tiers:
                slot = tier.hold(copy.page.key)
                if slot is not None:
                    copy.tier, copy.slot = tier, slot
                    self.num_held[tier.kind] += 1
                    break
            else:
                return False
        copy.users += 1
        return True

    def let_go(self, copy: PageCopy) -> None:
        """One user less. After the last the tier may drop it, and must where it can't be read."""
        copy.users -= 1
        if copy.users:
            return
        tier, slot, copy.tier, copy.slot = copy.tier, copy.slot, None, None
        if tier is None or slot is None:
            raise InvariantError("a page that no tier holds was let go of")
        self.num_held[tier.kind] -= 1
        tier.let_go(slot, copy.error)

    def disown(self, copy: PageCopy) -> None:
        """One owner less."""
        copy.owners -= 1
        if copy.owners == 0 and copy.is_private:
            self._unwanted.add(copy.page.key)

    def collect(self) -> None:
        """The tiers forget private pages that nobody owns any more."""
        if self._unwanted:
            gone = self._unwanted - self._migration.moving_keys()
            for tier in self._migration.tiers:
                tier.forget(list(gone))
            self._unwanted -= gone

    def forget(self, copy: PageCopy, error: TierError) -> None:
        """It can't be read where it lies: that tier is not asked for it again."""
        copy.error = error
        if copy.tier is not None:
            copy.tier.forget([copy.page.key])

    @property
    def num_unwanted(self) -> int:
        return len(self._unwanted)
