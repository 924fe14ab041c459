"""Why a request ended, as far as whoever serves it can say. Learning eviction policies are told: after a tool call the
next request of a conversation comes within seconds, after the end of a turn when the human has read and typed.

The engine itself can't know: an end token closes a tool call as well as an answer. So it asks a function, for each
choice that ended by itself; being preempted, cancelled or failed ends no turn, and nobody is asked. Knows no request
format.
"""

import logging
from collections.abc import Callable

from kvpager.engine.request import Branch, Completion, FinishReason, completion
from kvpager.eviction.policy import StopReason

EndedBy = Callable[[Completion], StopReason]
"""Told a finished choice, it says why it ended. It runs in the engine's thread, between two steps of all requests."""

_log = logging.getLogger(__name__)


class Endings:
    """``ended``: asked for requests that bring no function of their own; None knows nothing."""

    def __init__(self, ended: EndedBy | None) -> None:
        self._ended = ended
        self._has_warned = False

    def reason(self, branch: Branch) -> StopReason:
        """REQUIRES: finished. An error of the function is logged once, without what it says, and the reason unknown."""
        ended = branch.request.ended or self._ended
        if ended is None or branch.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return StopReason.UNKNOWN
        try:
            return StopReason(ended(completion(branch)))
        except Exception as error:
            self._warn(type(error).__name__)  # its text may quote the answer
            return StopReason.UNKNOWN

    def _warn(self, error: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the function 'ended' failed (%s): eviction goes on without stop reasons where it does. "
                "It must return a StopReason; this is said once",
                error,
            )
