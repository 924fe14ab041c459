"""What the demonstration asks: short tasks, many of them behind the same instructions, some answered twice.

Texts only. Requests with the same ``system`` share the pages of their beginning; those with ``choices`` above one share
their whole prompt; a ``follow_up`` is asked when the answer is there, behind the conversation so far.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    system: str
    user: str
    choices: int = 1
    follow_up: str = ""


_OBSERVATORY = (
    "You are the evening guide of a small observatory on a hill. Visitors are families with children. Answer in three "
    "or four short sentences, use everyday comparisons instead of numbers where you can, never invent facts, and end "
    "with one thing that the visitors can try or look for themselves tonight with the naked eye."
)
_KITCHEN = (
    "You are the head of a school kitchen that cooks for two hundred pupils. You write instructions for helpers who "
    "have never cooked before. List the steps in the order in which they are done, one short sentence each, name the "
    "quantity and the time in every step, and mention what can go wrong."
)
_LIBRARY = (
    "You are a librarian in a town library. People come with a half remembered question and little time. Say in plain "
    "words what the answer is, then where in a library one would look for more about it, in at most five sentences."
)

PROMPTS = (
    DemoPrompt(
        _OBSERVATORY,
        "Why does the moon change its shape during a month?",
        follow_up="And why do we always see the same side of it?",
    ),
    DemoPrompt(
        _KITCHEN, "How do we cook rice that does not stick?", follow_up="What do we do with the rice that is left?"
    ),
    DemoPrompt(_LIBRARY, "Who decided how long a second is?", follow_up="Is a second still the same length today?"),
    DemoPrompt(_OBSERVATORY, "Why do stars twinkle and planets don't?", choices=2),
    DemoPrompt(_KITCHEN, "How do we make a vegetable soup from what was left over?"),
    DemoPrompt(_LIBRARY, "What is the difference between weather and climate?"),
    DemoPrompt(_OBSERVATORY, "Is the north star the brightest star?", follow_up="How do we find it tonight?"),
    DemoPrompt(_KITCHEN, "How do we bake bread rolls for breakfast?", choices=2),
    DemoPrompt(_LIBRARY, "Why do some countries drive on the left?", follow_up="Name three of these countries."),
    DemoPrompt(_OBSERVATORY, "What is a shooting star?"),
    DemoPrompt(_KITCHEN, "How do we keep a salad fresh until noon?"),
    DemoPrompt(_LIBRARY, "How did people tell the time before there were clocks?", choices=2),
    DemoPrompt(_OBSERVATORY, "Could we see the footprints on the moon from here?"),
    DemoPrompt(_KITCHEN, "How do we peel forty eggs quickly?"),
    DemoPrompt(_LIBRARY, "Why is the sea salty although rivers are not?"),
    DemoPrompt(_OBSERVATORY, "Why is it dark at night if there are so many stars?"),
    DemoPrompt("", "Write a short poem about a lighthouse keeper and a storm.", choices=3),
    DemoPrompt(
        "", "Explain to a new colleague what a page table does.", follow_up="Compare it with the index of a book."
    ),
    DemoPrompt("", "Give five names for a bakery beside a railway station."),
    DemoPrompt("", "Summarise in one sentence why trees lose their leaves in autumn."),
    DemoPrompt("", "Write a polite letter that asks a neighbour to return a ladder."),
    DemoPrompt("", "What should I pack for a two day hike in the rain?"),
    DemoPrompt("", "Tell a joke about a librarian and a cat.", choices=2),
    DemoPrompt("", "Describe how a bicycle stays upright."),
)


@dataclass(frozen=True, slots=True)
class Programme:
    """What is asked, how long an answer may be, and the pool it has to do with, in tokens.

    ``usual_page``: tokens, to size the pool where the page size is given in bytes.
    """

    prompts: tuple[DemoPrompt, ...]
    max_tokens: int
    pool_tokens: int
    usual_page: int = 16

    @property
    def num_requests(self) -> int:
        return len(self.prompts) + sum(1 for prompt in self.prompts if prompt.follow_up)


FULL = Programme(PROMPTS, max_tokens=96, pool_tokens=1408)
QUICK = Programme(PROMPTS[:8], max_tokens=24, pool_tokens=576)
