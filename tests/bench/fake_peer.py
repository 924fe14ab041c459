"""A runner without an engine, for the tests of the protocol. ``variant`` says how it behaves."""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src/kvpager/bench/peer_runners"))

from serving_loop import Answer, Arrivals, Load, serve

BIG = 64 << 20


class Fake:
    """The next token is a function of the last one."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._variant, self._step = options["variant"], options.get("step", 1)
        self._runs = 0
        print("a line that a library prints on standard output")
        if self._variant == "refuses":
            raise RuntimeError("this processor lacks something")
        if self._variant == "dies":
            sys.exit(3)

    def about(self) -> dict[str, Any]:
        return {"precision": "whole numbers", "bits": 16, "kv_tokens": 64, "versions": {"fake": "1"}}

    def run(self, load: Load) -> list[Answer]:
        arrivals = Arrivals(load)
        self._runs += 1
        step = self._runs if self._variant == "counts" else self._step
        running: dict[int, dict[str, Any]] = {}
        if self._variant == "grows":
            bytearray(b"x") * BIG
        while arrivals.any_left or running:
            time.sleep(0.02 if self._variant == "dawdles" else 0.0)
            running.update(arrivals.due())
            if not running:
                arrivals.wait()
            for index, ask in list(running.items()):
                known = ask["prompt"] + arrivals.answers[index].tokens
                arrivals.answers[index].margins.append(0.25)
                if arrivals.came(index, [(known[-1] + step) % 100]):
                    del running[index]
        if self._variant == "tidies":
            time.sleep(0.05)
        if self._variant == "forgets":
            arrivals.answers[-1].tokens.pop()
        return arrivals.answers


if __name__ == "__main__":
    serve(Fake)
