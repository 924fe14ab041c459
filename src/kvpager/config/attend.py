"""How a request attends to its context: exactly, or approximately in a way that is named. No torch, no kernels.

    exact                                              every page, the default
    selective:budget=4096,sinks=64,recent=256          only the pages that matter most to each query; all are kept
    sinks-and-window:window=4096,sinks=4               pages between the first and the last ones are given back
    heavy-hitters:budget=4096,recent=256               pages that were attended to least are given back
    snapkv:budget=4096,observe=32                      as the end of the prompt attends to it, once, after the prompt

All but ``exact`` are approximate: answers differ from those of the whole context, and say so. Numbers are tokens and
are rounded up to whole pages.
"""

from dataclasses import dataclass, fields

from kvpager.config.shown import shown
from kvpager.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Exact:
    """Attention to the whole context."""

    name = "exact"


@dataclass(frozen=True, slots=True)
class Selective:
    """Each decode step attends to the pages whose digests promise most (after Quest: Tang et al., ICML 2024).

    One of the three says how many: ``budget`` tokens; ``share`` of the context, above 0 and at most 1; ``mass``: as few
    as leave an estimated 1 - mass of the attention out. ``sinks`` first and ``recent`` last tokens are always among
    them. ``reuse``: steps that use one selection. Prompts are computed exactly. What is stored never changes.
    """

    budget: int | None = None
    share: float | None = None
    mass: float | None = None
    sinks: int = 64
    recent: int = 256
    reuse: int = 1

    name = "selective"

    def __post_init__(self) -> None:
        given = [each for each in ("budget", "share", "mass") if getattr(self, each) is not None]
        if len(given) != 1:
            raise ConfigError(f"selective attention takes one of budget, share and mass, not {len(given)} of them")
        if self.budget is not None:
            _at_least(1, budget=self.budget)
        for name in ("share", "mass"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {value!r}")
        _at_least(0, sinks=self.sinks)
        _at_least(1, recent=self.recent, reuse=self.reuse)


@dataclass(frozen=True, slots=True)
class SinksAndWindow:
    """Keeps the first ``sinks`` and the last ``window`` tokens (StreamingLLM: Xiao et al., ICLR 2024)."""

    window: int = 4096
    sinks: int = 4

    name = "sinks-and-window"

    def __post_init__(self) -> None:
        _at_least(1, window=self.window)
        _at_least(0, sinks=self.sinks)


@dataclass(frozen=True, slots=True)
class HeavyHitters:
    """Keeps the pages that were attended to most so far, ``budget`` tokens with the ``recent`` ones (H2O: Zhang et al.,
    NeurIPS 2023)."""

    budget: int = 4096
    recent: int = 256
    sinks: int = 4

    name = "heavy-hitters"

    def __post_init__(self) -> None:
        _at_least(1, recent=self.recent)
        _at_least(0, sinks=self.sinks)
        if self.budget < self.recent + self.sinks:
            raise ConfigError(f"a budget of {self.budget} holds no {self.recent} recent tokens and {self.sinks} sinks")


@dataclass(frozen=True, slots=True)
class SnapKV:
    """After the prompt, keeps the ``budget`` tokens of it that its last ``observe`` queries attend to most (SnapKV: Li
    et al., NeurIPS 2024). What is generated is kept."""

    budget: int = 4096
    observe: int = 32
    sinks: int = 4

    name = "snapkv"

    def __post_init__(self) -> None:
        _at_least(1, budget=self.budget, observe=self.observe)
        _at_least(0, sinks=self.sinks)


Attend = Exact | Selective | SinksAndWindow | HeavyHitters | SnapKV
_KINDS = {kind.name: kind for kind in (Exact, Selective, SinksAndWindow, HeavyHitters, SnapKV)}
ATTEND_NAMES = tuple(_KINDS)
EXACT = Exact()


def most_kept(attend: Attend) -> int | None:
    """Tokens of which pages stay, however long the sequence; None where there is no such number."""
    match attend:
        case SinksAndWindow():
            return attend.sinks + attend.window
        case HeavyHitters():
            return attend.budget
    return None


def parse_attend(text: str) -> Attend:
    """``name`` or ``name:setting=number,...``. Raises ConfigError that says what is wrong and how it is written."""
    name, _, rest = text.strip().partition(":")
    kind = _KINDS.get(name.strip().lower())
    if kind is None:
        raise ConfigError(f"attention {shown(text)} is not known; choose one of {', '.join(_KINDS)}")
    known = {each.name for each in fields(kind)}
    settings: dict[str, int | float] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        setting, equals, value = (each.strip() for each in part.partition("="))
        if setting not in known or not equals:
            takes = f"takes {', '.join(sorted(known))}" if known else "takes no settings"
            raise ConfigError(f"{shown(part)}: {kind.name} {takes}; write '{kind.name}:NAME=NUMBER,...'")
        try:
            settings[setting] = float(value) if setting in ("share", "mass") else int(value)
        except ValueError:
            raise ConfigError(f"{kind.name}: {setting} must be a number, not {shown(value)}") from None
    return kind(**settings)  # type: ignore[arg-type]


def describe(attend: Attend) -> str:
    """As ``parse_attend`` reads it: for usage, metrics and logs."""
    given = [f"{each.name}={value}" for each in fields(attend) if (value := getattr(attend, each.name)) is not None]
    return f"{attend.name}:{','.join(given)}" if given else attend.name


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
