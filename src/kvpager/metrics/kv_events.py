"""Publishes KV events on ZMQ, in the wire format of vLLM and SGLang: for routers that send a prompt where its KV lies.

    PUB socket      [topic] [seq, 8 bytes big-endian] [msgpack]      one message a step in which pages came or went
    ROUTER socket   what was missed, on request (metrics/kv_replay.py)

The events carry token ids, which are prompts and answers: they are for the operator's own services, off by default, and
an endpoint that other machines can reach is refused unless an open bind is allowed. Nothing on these sockets asks for a
key.

The engine's thread only puts lists into a queue. A thread of its own makes bytes of them and sends them; where it falls
behind, it is passed over and starts anew from all pages. ZMQ drops what a subscriber does not read in time, which that
sees by a gap in the numbers. The first message says what was there when publishing began.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from kvpager.cache.page_log import PageEvent
from kvpager.errors import ConfigError, MissingExtra
from kvpager.memory.layout import KVLayout
from kvpager.metrics.kv_replay import ReplayBuffer, ReplayServer
from kvpager.metrics.kv_wire import Form, Translator, Wire

if TYPE_CHECKING:
    import zmq

TOPIC = "kv-events"
MOST_QUEUED = 1 << 18  # events that wait for the thread
_MOST_UNSENT = 1000  # messages that wait for one subscriber
_REPLAY_UNSENT = 256
_TURN_MILLISECONDS = 20  # between two tries to send to whoever asked for more than it reads
_LINGER_MILLISECONDS = 200
_MOST_SAID = 4096  # bytes of a message to us: topics and numbers; whoever sends more is disconnected
_RANK = 0  # there is one engine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVEventCounts:
    """Since publishing began. ``refused``: requests for a replay that made no sense, or found too many others."""

    batches: int
    bytes: int
    pages: int
    replays: int
    refused: int


class KVEventPublisher:
    """A subscriber of the page log. ``endpoint``, ``replay``: addresses to bind, ``tcp://127.0.0.1:5557`` or
    ``ipc:///path``; a port of ``*`` is any free one.

    Raises ConfigError for addresses that can't be used, or not without ``allow_open``; MissingExtra.
    """

    wants_content = True
    wants_uses = wants_new = False

    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        allow_open: bool = False,
        form: Form = Form.MAPS,
        topic: str = TOPIC,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        self._import()
        self.endpoint = check_endpoint("events", endpoint, allow_open)
        self.replay_endpoint = None if replay is None else check_endpoint("events_replay", replay, allow_open)
        self._form, self._topic = form, topic.encode()
        self._queue: deque[Sequence[PageEvent]] = deque()
        self._put = self._done = 0  # events; each is written by one thread alone
        self._buffer = buffer or ReplayBuffer()
        self._bytes = 0
        self._translator: Translator | None = None
        self._replay: ReplayServer | None = None
        self._wake = -1
        self._is_closing = self._has_failed = False
        self._thread: threading.Thread | None = None

    @staticmethod
    def _import() -> None:
        try:
            import msgpack  # noqa: F401
            import zmq  # noqa: F401
        except ImportError as error:
            raise MissingExtra(error.name or "pyzmq", "events", "publishing KV events") from None

    # -- the engine's thread ------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self._put - self._done < MOST_QUEUED and not self._has_failed

    def take(self, events: Sequence[PageEvent]) -> None:
        self._put += len(events)
        self._queue.append(events)
        os.eventfd_write(self._wake, 1)

    # -- opening and closing ------------------------------------------------------------------------------------

    def start(self, layout: KVLayout) -> None:
        """Binds the sockets; ``endpoint`` and ``replay_endpoint`` then have their ports. Raises ConfigError."""
        import zmq

        self._translator = Translator(layout, self._form)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            pub = context.socket(zmq.PUB)
            pub.setsockopt(zmq.SNDHWM, _MOST_UNSENT)
            self.endpoint = _bind(pub, "events", self.endpoint)
            router = None
            if self.replay_endpoint is not None:
                router = context.socket(zmq.ROUTER)
                router.setsockopt(zmq.SNDHWM, _REPLAY_UNSENT)
                router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.replay_endpoint = _bind(router, "events_replay", self.replay_endpoint)
                topic = self._topic if self._form is Form.MAPS else None
                self._replay = ReplayServer(router, self._buffer, self._everything, topic, time.monotonic)
        except BaseException:
            context.destroy(0)
            raise
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=self._run, args=(context, pub, router), name="kvpager-kv-events", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Sends what is queued and ends the thread. REQUIRES: the page log does not know it any more."""
        if self._thread is not None:
            self._is_closing = True
            os.eventfd_write(self._wake, 1)
            self._thread.join(5.0)
            if not self._thread.is_alive():
                os.close(self._wake)
            self._thread = None

    def counts(self) -> KVEventCounts:
        replay, translator = self._replay, self._translator
        return KVEventCounts(
            batches=self._buffer.next_seq,
            bytes=self._bytes,
            pages=0 if translator is None else translator.num_pages,
            replays=0 if replay is None else replay.served,
            refused=0 if replay is None else replay.refused,
        )

    # -- its own thread -----------------------------------------------------------------------------------------

    def _run(self, context: Any, pub: "zmq.Socket[bytes]", router: "zmq.Socket[bytes] | None") -> None:
        try:
            self._serve(pub, router)
        except Exception as error:
            _log.error("KV events are published no more: %s", type(error).__name__)
            self._has_failed = True
        finally:
            context.destroy(_LINGER_MILLISECONDS)

    def _serve(self, pub: "zmq.Socket[bytes]", router: "zmq.Socket[bytes] | None") -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if router is not None:
            poller.register(router, zmq.POLLIN)
        while not (self._is_closing and not self._queue):
            is_busy = self._replay is not None and self._replay.is_busy
            poller.poll(_TURN_MILLISECONDS if is_busy else None)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while self._queue:
                self._publish(pub, self._queue.popleft())
            if self._replay is not None:
                self._replay.accept()
                self._replay.send()

    def _publish(self, pub: "zmq.Socket[bytes]", events: Sequence[PageEvent]) -> None:
        assert self._translator is not None
        wire = self._translator.events(events)
        self._done += len(events)
        if self._buffer.next_seq == 0:
            wire = self._translator.everything()  # whoever listened before a restart has to forget
        if wire:
            payload = _pack(wire)
            self._bytes += len(payload)
            seq = self._buffer.add(payload)
            pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])

    def _everything(self) -> bytes:
        assert self._translator is not None
        return _pack(self._translator.everything())


def _pack(wire: list[Wire]) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb([time.time(), wire, _RANK])
    return packed


def _bind(socket: "zmq.Socket[bytes]", option: str, endpoint: str) -> str:
    """Returns the address it got."""
    import zmq

    socket.setsockopt(zmq.MAXMSGSIZE, _MOST_SAID)
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"option {option!r}: {endpoint} can't be bound: {error.strerror}") from None
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\\0").decode()  # type: ignore[union-attr]


def check_endpoint(option: str, endpoint: str, allow_open: bool) -> str:
    """An address as ZMQ binds it. Raises ConfigError for one that is none, or that other machines could reach."""
    if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://"):
        return endpoint
    scheme, _, place = endpoint.partition("://")
    host, _, port = place.rpartition(":")
    is_port = port == "*" or (port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    if scheme != "tcp" or not host or not is_port:
        raise ConfigError(
            f"option {option!r} can't be {endpoint!r}: give an address like tcp://127.0.0.1:5557 or ipc:///run/events"
        )
    if not (allow_open or _is_loopback(host)):
        raise ConfigError(
            f"option {option!r}: {endpoint} could be reached from other machines, and events carry the token ids of "
            "prompts and answers; bind 127.0.0.1, or allow an open bind"
        )
    return endpoint.replace("//localhost:", "//127.0.0.1:")


def _is_loopback(host: str) -> bool:
    """Names but localhost are not looked up: who knows what they mean tomorrow."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
