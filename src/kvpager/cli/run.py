"""Answers prompts with a model and exits. Several prompts run together and are printed in their order; with --json
each answer is one line of JSON, printed when it is finished. A line of statistics goes to standard error.
"""

import argparse
import json
import sys
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, add_sampling, chosen_options, chosen_sampling
from kvpager.cli.prompts import encode_prompt, has_chat_template, read_prompts
from kvpager.cli.tier_hits import hits_by_name, in_words
from kvpager.cli.usage import usage, usage_in_words
from kvpager.errors import RequestError
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.cli.session import Interruption
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Completion, Request
    from kvpager.engine.sampling_params import Sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="what to answer")
    parser.add_argument("--file", metavar="FILE", help="more prompts, one a line; - is standard input")
    parser.add_argument("--system", metavar="TEXT", help="instructions that go before every prompt")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--chat", action="store_true", help="use the model's chat template (the default if it has one)")
    style.add_argument("--raw", action="store_true", help="give prompts to the model as they stand")
    add_sampling(parser)
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options, sampling = chosen_options(arguments), chosen_sampling(arguments)
    texts = read_prompts(arguments.prompts, arguments.file)
    from kvpager.cli.session import interruptible, open_engine

    with open_engine(options) as engine:
        chat = arguments.chat or (has_chat_template(engine) and not arguments.raw)
        prompts = [encode_prompt(engine, text, chat=chat, system=arguments.system) for text in texts]
        begin = perf_counter()
        with interruptible() as interruption:
            if len(prompts) == sampling.n == 1 and not arguments.json:
                answers = [_stream(engine, prompts[0], sampling, interruption)]
            else:
                finished = _generate(engine, prompts, sampling, interruption)
                show = _print_json if arguments.json else _print_in_order
                answers = show(texts, sampling.n, finished)
        print(_summary(answers, perf_counter() - begin), file=sys.stderr)
    failed = [answer for answer in answers if answer.error]
    for answer in failed:
        print(f"kvpager: error: prompt {answer.index + 1} failed: {answer.error}", file=sys.stderr)
    return 1 if failed else 0


def _generate(
    engine: "Engine", prompts: list["array[int]"], sampling: "Sampling", interruption: "Interruption"
) -> Iterator["Completion"]:
    """The answers as they finish; as many prompts wait as the queue takes. An error names the prompt it is about."""
    feed = deque(enumerate(prompts))
    under_way: list[Request] = []
    while feed or under_way:
        while feed and engine.num_waiting < engine.options.max_waiting:
            under_way.append(_submit(engine, *feed.popleft(), sampling))
        engine.step()
        interruption.check()
        for request in [request for request in under_way if request.is_finished]:
            under_way.remove(request)
            yield from request.completions()


def _submit(engine: "Engine", index: int, prompt: "array[int]", sampling: "Sampling") -> "Request":
    try:
        return engine.submit(prompt, sampling, index=index)
    except RequestError as error:
        raise RequestError(f"prompt {index + 1}: {error}") from error


def _stream(engine: "Engine", prompt: "array[int]", sampling: "Sampling", interruption: "Interruption") -> "Completion":
    request = _submit(engine, 0, prompt, sampling)
    while not request.is_finished:
        for event in engine.step():
            print(event.text, end="", flush=True)
        interruption.check()
    print()
    return request.completions()[0]


def _print_json(texts: list[str], n: int, answers: Iterator["Completion"]) -> list["Completion"]:
    printed = []
    for answer in answers:
        print(json.dumps(_as_object(texts[answer.index], answer), ensure_ascii=False), flush=True)
        printed.append(answer)
    return printed


def _as_object(prompt: str, answer: "Completion") -> dict[str, object]:
    return {
        "index": answer.index,
        "choice": answer.choice,
        "prompt": prompt,
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "finish_reason": answer.finish_reason.value,
        "prompt_tokens": answer.prompt_tokens,
        "prefix_tokens": answer.prefix_tokens,
        "prefix_by_tier": hits_by_name(answer.prefix_by_tier),
        "preemptions": answer.preemptions,
        "usage": usage(answer),
        "error": answer.error,
    }


def _print_in_order(texts: list[str], n: int, answers: Iterator["Completion"]) -> list["Completion"]:
    """Prints each answer as soon as it and all before it are finished."""
    finished: dict[tuple[int, int], Completion] = {}
    order = iter([(index, choice) for index in range(len(texts)) for choice in range(n)])
    printed: list[Completion] = []
    following = next(order, None)
    for answer in answers:
        finished[answer.index, answer.choice] = answer
        while following in finished:
            _print_answer(texts, n, finished[following])
            printed.append(finished[following])
            following = next(order, None)
    return printed


def _print_answer(texts: list[str], n: int, answer: "Completion") -> None:
    which = f" [{answer.choice + 1} of {n}]" if n > 1 else ""
    print(f"> {texts[answer.index]}{which}\n{answer.text}\n", flush=True)


def _summary(answers: list["Completion"], seconds: float) -> str:
    tokens = sum(len(answer.token_ids) for answer in answers)
    firsts = [answer for answer in answers if answer.choice == 0]
    prompt, found = sum(a.prompt_tokens for a in firsts), sum(a.prefix_tokens for a in firsts)
    preemptions = sum(answer.preemptions for answer in answers)
    noun = "answer" if len(answers) == 1 else "answers"
    return (
        f"{len(answers)} {noun}, {tokens} tokens in {seconds:.1f} s ({tokens / max(seconds, 1e-9):.1f} tokens/s); "
        f"{found} of {prompt} prompt tokens found in the prefix index{_where(firsts)}; {preemptions} preemptions"
        f"{usage_in_words(answers)}"
    )


def _where(answers: list["Completion"]) -> str:
    """How many tokens came from which tier, where any came from below the device."""
    hits: Counter[TierKind] = Counter()
    for answer in answers:
        hits.update(answer.prefix_by_tier)
    return in_words(hits)
