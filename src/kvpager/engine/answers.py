"""The loop of those who want many answers rather than steps: it submits, steps and cancels as any client could."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from typing import TYPE_CHECKING

from kvpager.cache.retention_terms import Retention
from kvpager.config.attend import Attend
from kvpager.engine.endings import EndedBy
from kvpager.engine.request import Completion, Request
from kvpager.engine.sampling_params import Sampling
from kvpager.prefix.hashing import Scope

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.intake import Prompt


def answers(
    engine: "Engine",
    prompts: "Iterable[Prompt]",
    sampling: Sampling | List[Sampling],
    scope: Scope,
    ended: EndedBy | None,
    retain: tuple[Retention, ...],
    attend: Attend | str | None,
) -> Iterator[Completion]:
    """Each choice of each prompt as it finishes; as many prompts wait as the queue takes."""
    feed = enumerate(prompts)
    mine: dict[int, Request] = {}
    done = False
    try:
        while not done or mine:
            while not done and engine.num_waiting < engine.options.max_waiting:
                item = next(feed, None)
                if item is None:
                    done = True
                    break
                index, prompt = item
                own = sampling if isinstance(sampling, Sampling) else sampling[index]
                request = engine.submit(
                    prompt, own, scope=scope, index=index, ended=ended, retain=retain, attend=attend
                )
                mine[request.id] = request
            if engine.has_work:  # perhaps only that of others, who fill the queue
                engine.step()
            for request in [each for each in mine.values() if each.is_finished]:
                del mine[request.id]
                yield from request.completions()
    finally:
        for request_id in mine:
            engine.cancel(request_id)
