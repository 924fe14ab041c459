"""The table of what a server is told beside the engine's options: where it listens, who may call, and its limits.

Does not know HTTP, an engine or a command line.
"""

from dataclasses import dataclass
from pathlib import Path

from kvpager.config.kinds import Bytes, Flag, OptionalText, PathOfFile, Seconds, Text, Whole
from kvpager.config.sizes import parse_size
from kvpager.config.table import check_fields, option

_ADDRESS = r"[a-z]+://\S+"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Immutable; an illegal value raises ConfigError. The table below is the documentation too."""

    host: str = option(
        "127.0.0.1",
        Text("an address or a name of this machine", r"\S+"),
        "Where to listen; by default only this machine reaches it.",
        "'0.0.0.0' to serve others, with API keys.",
    )
    port: int = option(
        8000,
        Whole(0, high=65535),
        "The port to listen on; 0 is any free one.",
        "If another server has it.",
    )
    served_name: str | None = option(
        None,
        OptionalText("a name", r"\S(.*\S)?", none="that of the option 'model'"),
        "What clients call the model.",
        "To keep clients as they are when the model moves, or to hide its path.",
    )
    api_keys: Path | None = option(  # noqa: RUF009 (a field, as dataclasses.field makes one)
        None,
        PathOfFile(none="nobody is asked for a key"),
        "A file with the keys that clients may use, a line NAME KEY for each tenant; only its owner may read it. The "
        "variable KVPAGER_API_KEY gives a single key instead.",
        "Wherever anybody else can reach the server, and to keep tenants apart.",
    )
    allow_open_bind: bool = option(
        False,
        Flag(),
        "Listen on an address that others can reach although no key is asked for.",
        "Only in a network where everybody may use, see and empty the cache.",
    )
    allow_reset: bool = option(
        False,
        Flag(),
        "Operators may empty the cache by a request.",
        "On for measurements and tests.",
    )
    max_body: str | int = option(
        "8MiB",
        Bytes(),
        "Size of a request's body, at most.",
        "Raise it for prompts of millions of tokens.",
    )
    max_seconds: float | None = option(
        600.0,
        Seconds(none="as long as it takes"),
        "Seconds that a request may take, from its coming to its last token. Then it ends with what there is, as if it "
        "had reached max_tokens; without a token yet it fails.",
        "Raise it for long answers of slow models, or contexts larger than the device.",
    )
    stall_seconds: float = option(
        10.0,
        Seconds(),
        "Seconds without a finished step of the engine, after which the server says that it is not ready and refuses "
        "requests, until it goes on. After six times as many it calls for a restart.",
        "Raise it where single steps take longer; lower max_batch_tokens first.",
    )
    drain_seconds: float = option(
        30.0,
        Seconds(),
        "Seconds that requests under way get to end after the signal to stop (SIGTERM or Ctrl-C).",
        "Below the time after which whoever stops the server kills it.",
    )
    status_seconds: float | None = option(
        10.0,
        Seconds(none="no such lines"),
        "Seconds between two lines of the log that sum up; none is written while nothing happens.",
        "Raise it for a quieter log.",
    )
    page: bool = option(
        True,
        Flag(),
        "Show operators the memory at / in a browser.",
        "Off where metrics are enough.",
    )
    metrics_compat: str = option(
        "none",
        Text("'none' or 'vllm'", "none|vllm"),
        "Names of metrics that /metrics adds to its own: 'vllm' is the dozen that gateways read to spread load.",
        "Behind such a gateway.",
    )
    events: str | None = option(
        None,
        OptionalText("an address such as 'tcp://127.0.0.1:5557'", _ADDRESS, none="no events"),
        "Where to publish over ZMQ which pages are kept and dropped.",
        "For routers that send requests to where their prefix is.",
    )
    events_replay: str | None = option(
        None,
        OptionalText("an address such as 'tcp://127.0.0.1:5558'", _ADDRESS, none="no replay"),
        "Where readers of events can ask for those they missed.",
        "Together with 'events', for readers that start late or lose connection.",
    )
    events_form: str = option(
        "maps",
        Text("'maps' or 'arrays'", "maps|arrays"),
        "How events are written: 'maps' as vLLM and SGLang do now, 'arrays' as they did before.",
        "For readers that were made for older versions of those.",
    )
    otel: str | None = option(
        None,
        OptionalText("an address such as 'http://127.0.0.1:4318'", _ADDRESS, none="no spans"),
        "Where to send OpenTelemetry spans of requests, by OTLP over HTTP.",
        "To see requests of several services together.",
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def max_body_bytes(self) -> int:
        return parse_size(self.max_body)
