"""A process that tries grammars of clients, so that one that never ends or overflows the stack ends nothing but this.

    stdin    {"grammar": ..., "limits": {...}}   one a line, as JSON
    stdout   {}   ready; then for each   {"error": ""}   or what is wrong with it

A grammar that takes too long is killed by a timer, together with the process; one with rules nested too deep by its
stack, which is smaller than that of the threads it will be used in. Run by grammar_check.py, with ``python -m``.
"""

import json
import resource
import signal
import sys
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance import TokenizerWrapper as Wrapper

CPU_SECONDS = 2.0  # that one grammar may take
SECONDS = 30.0  # by the clock, on a machine that is busy with other things
MEMORY = 1 << 30  # bytes
STACK = 1 << 20  # bytes: those that it is used with have several times as much
_STEPS = 16  # tokens of a text that are tried


class _Bytes:
    """A tokenizer whose tokens are the single bytes, and an end token."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"\xff[end]")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault_of(tokenizer: LLTokenizer, grammar: str, limits: dict[str, Any]) -> str:
    """What is wrong with a grammar; empty if some text satisfies it, as far as a few steps show."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
    for _ in range(_STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or matcher.is_stopped():
            break
        if not mask:
            return "no text satisfies it"
        matcher.consume_token(mask.bit_length() - 1)
    matcher.deep_copy()
    fault = str(matcher.get_error())
    return "no text satisfies it" if fault.startswith("NoExtension") else fault


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    tokenizer = LLTokenizer(Wrapper(_Bytes()))
    print("{}", flush=True)
    for line in sys.stdin:
        asked, found = json.loads(line), [""]

        def check(asked: dict[str, Any] = asked, found: list[str] = found) -> None:
            found[0] = fault_of(tokenizer, asked["grammar"], asked["limits"])

        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"error": found[0]}), flush=True)


if __name__ == "__main__":
    main()
