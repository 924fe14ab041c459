"""What was published lately, for subscribers that missed some of it: they ask for all from a sequence number on.

    subscriber                                   ROUTER socket
    [seq, 8 bytes big-endian] ------------------>
                              <------------------ [topic] [seq] [payload]      one message for each batch
                              <------------------ []      [-1]  []             the end

In the form with arrays the topic's frame is missing, as it was when arrays were sent. Where the buffer does not reach
back far enough, one batch is sent instead that clears everything and has all pages as they are now, under the number
of the latest batch: whoever joins late starts from that.

A subscriber that does not read is waited for a while, without holding up anything else, and then dropped. Runs on the
publisher's thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.types import Clock

if TYPE_CHECKING:
    import zmq

END = (-1).to_bytes(8, "big", signed=True)
MOST_BATCHES = 10_000
MOST_BYTES = 64 << 20
MOST_READERS = 16
_AT_ONCE = 64  # messages to one reader before the others get a turn
_PATIENCE = 30.0  # seconds without progress


class ReplayBuffer:
    """The latest batches, in order and without gaps."""

    def __init__(self, most_batches: int = MOST_BATCHES, most_bytes: int = MOST_BYTES) -> None:
        self._batches: deque[bytes] = deque()
        self._most_batches, self._most_bytes = most_batches, most_bytes
        self._bytes = 0
        self.next_seq = 0

    @property
    def oldest(self) -> int:
        return self.next_seq - len(self._batches)

    def add(self, payload: bytes) -> int:
        """Returns its sequence number."""
        self._batches.append(payload)
        self._bytes += len(payload)
        while self._bytes > self._most_bytes or len(self._batches) > self._most_batches:
            self._bytes -= len(self._batches.popleft())
        self.next_seq += 1
        return self.next_seq - 1

    def get(self, seq: int) -> bytes | None:
        at = seq - self.oldest
        return self._batches[at] if 0 <= at < len(self._batches) else None


@dataclass(slots=True)
class _Reader:
    """``head``: the frames before each of its messages; ``stop``: the first number that it does not get."""

    head: list[bytes]
    seq: int
    stop: int
    progressed: float


class ReplayServer:
    """``socket``: a ROUTER. ``everything``: the payload that a subscriber can start from. ``topic``: None: no frame."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        buffer: ReplayBuffer,
        everything: Callable[[], bytes],
        topic: bytes | None,
        clock: Clock,
    ) -> None:
        self._socket, self._buffer, self._everything = socket, buffer, everything
        self._topic, self._clock = topic, clock
        self._readers: dict[bytes, _Reader] = {}
        self._whole: tuple[int, bytes] = (-1, b"")  # the latest answer to whoever came too late
        self.served = self.refused = 0  # requests

    @property
    def is_busy(self) -> bool:
        """Whether a reader waits for more."""
        return bool(self._readers)

    def accept(self) -> None:
        """Takes the requests that have come."""
        import zmq

        while True:
            try:
                who, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frames or len(frames[-1]) != 8 or (who not in self._readers and len(self._readers) >= MOST_READERS):
                self.refused += 1
                continue
            start = int.from_bytes(frames[-1], "big")
            self._readers[who] = _Reader([who, *frames[:-1]], start, self._buffer.next_seq, self._clock())

    def send(self) -> None:
        """Sends what the readers take now."""
        for who, reader in tuple(self._readers.items()):
            if self._is_done(reader):
                del self._readers[who]

    def _is_done(self, reader: _Reader) -> bool:
        import zmq

        topic = [] if self._topic is None else [self._topic]
        try:
            for _ in range(_AT_ONCE):
                if reader.seq >= reader.stop:
                    self._socket.send_multipart([*reader.head, *(b"" for _ in topic), END, b""], zmq.NOBLOCK)
                    self.served += 1
                    return True
                payload = self._buffer.get(reader.seq)
                if payload is None:  # it is too old
                    reader.seq, payload = self._latest()
                    reader.stop = reader.seq + 1
                number = reader.seq.to_bytes(8, "big")
                self._socket.send_multipart([*reader.head, *topic, number, payload], zmq.NOBLOCK)
                reader.seq += 1
                reader.progressed = self._clock()
        except zmq.Again:
            if self._clock() - reader.progressed < _PATIENCE:
                return False
            self.refused += 1
            return True
        except zmq.ZMQError:  # it has gone
            return True
        return False

    def _latest(self) -> tuple[int, bytes]:
        latest = self._buffer.next_seq - 1
        if self._whole[0] != latest:
            self._whole = (latest, self._everything())
        return self._whole
