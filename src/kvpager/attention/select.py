"""Which attention backend to use here, and why the others don't work."""

from collections.abc import Callable
from dataclasses import dataclass

from kvpager.attention import cpu
from kvpager.attention.backend import AttentionBackend
from kvpager.attention.reference import ReferenceBackend
from kvpager.attention.torch_batched import TorchBackend
from kvpager.errors import ConfigError
from kvpager.memory.layout import KVLayout


@dataclass(frozen=True, slots=True)
class Availability:
    """A backend by name; ``reason`` says why it can't be used here, and is empty where it can."""

    name: str
    reason: str

    @property
    def is_available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class _Entry:
    """``why_not`` returns the reason a backend can't serve a layout, or an empty string."""

    make: Callable[[], AttentionBackend]
    why_not: Callable[[KVLayout | None], str]


# Best first.
_BACKENDS: dict[str, _Entry] = {
    "cpu": _Entry(cpu.CpuBackend, cpu.why_not),
    "torch": _Entry(TorchBackend, lambda layout: ""),
    "reference": _Entry(ReferenceBackend, lambda layout: ""),
}


def backends(layout: KVLayout | None = None) -> list[Availability]:
    """Every backend, best first, and whether it works on this machine for ``layout``."""
    return [Availability(name, entry.why_not(layout)) for name, entry in _BACKENDS.items()]


def select(layout: KVLayout | None = None, name: str = "auto") -> AttentionBackend:
    """The best backend that works, or the one called ``name``. Raises ConfigError, with the reasons, if none does."""
    if name != "auto" and name not in _BACKENDS:
        raise ConfigError(f"unknown attention backend {name!r}; choose 'auto' or one of {', '.join(_BACKENDS)}")
    reasons = []
    for found in backends(layout):
        if name in ("auto", found.name):
            if found.is_available:
                return _BACKENDS[found.name].make()
            reasons.append(f"{found.name}: {found.reason}")
    raise ConfigError("no attention backend works here. " + "; ".join(reasons))
