"""Whether a grammar of a client can be compiled here at all, found out in a process that may die of it.

A library that is written for grammars of one's own takes minutes for some of those that others send, or overflows its
stack, which ends the process. What has passed there is compiled again in this process, where it is needed.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_MODULE = "kvpager.server.grammar_child"


class GrammarCheck:
    """``limits``: of the library, as for LLParserLimits. The process is begun when it is first needed."""

    def __init__(self, limits: Mapping[str, object]) -> None:
        self._limits = dict(limits)
        self._child: subprocess.Popen[str] | None = None

    def fault_of(self, grammar: str) -> str:
        """What is wrong with it; empty if nothing is. Takes a few seconds at most, of a core of its own."""
        child = self._running()
        answer = ""
        with suppress(BrokenPipeError):
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps({"grammar": grammar, "limits": self._limits}) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        if answer:
            return str(json.loads(answer)["error"])
        self.close()
        return "it is too complex: it takes too long, too much memory or too deep a stack to compile"

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # its last words quote the grammar
                start_new_session=True,  # what is typed at a terminal is not meant for it
                text=True,
                encoding="utf-8",
            )
            assert self._child.stdout is not None
            if not self._child.stdout.readline():
                self.close()
                raise OSError("the process that checks grammars did not start")
        return self._child

    def interrupt(self) -> None:
        """Ends the process from another thread; what is being tried there is refused."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """Ends the process. It may be used again."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        with suppress(BrokenPipeError):
            child.communicate()
