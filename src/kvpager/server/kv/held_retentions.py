"""Which tenant made which retention, under names that only it knows. Bounded; what is over goes.

Knows retentions by the cache's numbers. REQUIRES: all calls come from the engine's thread, between two steps.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from kvpager.cache.retention_terms import Retained
from kvpager.engine.engine import Engine

MOST_EACH = 1024  # of one tenant


@dataclass(frozen=True, slots=True)
class Held:
    """``pins``: blocks' worth of pages that it pins at most, those before its range included; ``names``: how often it
    names a page, in all layer groups."""

    name: str
    tenant: str
    number: int
    pins: int
    names: int


class HeldRetentions:
    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def of(self, engine: Engine, tenant: str) -> dict[str, Retained]:
        """What a tenant's retentions cover now, the oldest first."""
        answers = {held.name: engine.cache.retention.get(held.number) for held in self._of(tenant)}
        for name in [name for name, answer in answers.items() if answer is None]:
            del self._held[name]
        return {name: answer for name, answer in answers.items() if answer is not None}

    def num_pins(self, tenant: str) -> int:
        return sum(held.pins for held in self._of(tenant))

    def num_names(self, tenant: str) -> int:
        return sum(held.names for held in self._of(tenant))

    def add(self, tenant: str, number: int, pins: int, names: int) -> str:
        held = Held(f"ret-{secrets.token_hex(12)}", tenant, number, pins, names)
        self._held[held.name] = held
        return held.name

    def take(self, tenant: str, name: str) -> Held | None:
        """Forgets one of a tenant's; None if it has none of that name."""
        held = self._held.get(name)
        return None if held is None or held.tenant != tenant else self._held.pop(name)

    def _of(self, tenant: str) -> Iterable[Held]:
        return [held for held in self._held.values() if held.tenant == tenant]
