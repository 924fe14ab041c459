"""Quotas of tenants as options, and as text: ``tenant=2GiB``, ``tenant=10%,weight=2``, ``tenant=none,weight=3``."""

from dataclasses import dataclass

from kvpager.config.memory import resolve_capacity
from kvpager.config.sizes import MAX_SIZE
from kvpager.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What ``tenant`` may hold on each tier: bytes, a size, or a share of each; None: no limit. ``weight``: of its fair
    share. Raises ConfigError for what is no size or weight."""

    tenant: str
    capacity: str | int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_quota(self.capacity, self.weight)


def check_quota(capacity: str | int | None, weight: float) -> None:
    """Raises ConfigError for what is no size or weight."""
    quota_bytes(capacity, MAX_SIZE)
    if not 0 < weight < float("inf"):
        raise ConfigError(f"the weight of a tenant must be above 0 and finite, not {weight}")


def quota_bytes(capacity: str | int | None, available: int) -> int:
    """How much of ``available`` bytes a quota allows; unlike other sizes, it may be 0."""
    if capacity is None:
        return available
    return 0 if str(capacity).strip() in ("0", "0%") else resolve_capacity(capacity, available)


def parse_quota(text: str) -> TenantQuota:
    """A quota written as text. Raises ConfigError that says how it is written."""
    tenant, is_given, rest = text.partition("=")
    size, *settings = rest.split(",")
    weight = 1.0
    try:
        for setting in settings:
            name, _, value = setting.partition("=")
            if name.strip() != "weight":
                raise ValueError
            weight = float(value)
        if not is_given or not tenant.strip():
            raise ValueError
    except ValueError:
        raise ConfigError("write TENANT=SIZE or TENANT=SIZE,weight=NUMBER, such as team-a=10%,weight=2") from None
    return TenantQuota(tenant.strip(), None if size.strip() == "none" else size.strip(), weight)
