"""What a server is told beside the engine's options: where it listens, who may call, and its limits.

Does not know HTTP, an engine or a command line.
"""

from dataclasses import dataclass
from pathlib import Path

from kvpager.config.sizes import parse_size
from kvpager.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Immutable; an illegal value raises ConfigError.

    ``stall_seconds``: without a sign of life from the engine, after which readiness says so; ``drain_seconds``: that
    requests under way get after SIGTERM; ``max_seconds``: that one request may take; ``status_seconds``: between two
    lines of the log that sum up, 0: none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_name: str | None = None
    api_keys: Path | None = None
    allow_open_bind: bool = False
    allow_reset: bool = False
    max_body: str | int = "8MiB"
    max_seconds: float = 600.0
    stall_seconds: float = 10.0
    drain_seconds: float = 30.0
    status_seconds: float = 10.0
    page: bool = True
    metrics_compat: str = "none"
    events: str | None = None
    events_replay: str | None = None
    otel: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"option 'port' can't be {self.port}: give 0 (any free one) to 65535")
        if self.metrics_compat not in ("none", "vllm"):
            raise ConfigError(f"option 'metrics_compat' can't be {self.metrics_compat!r}: give 'none' or 'vllm'")

    @property
    def max_body_bytes(self) -> int:
        return parse_size(self.max_body)
