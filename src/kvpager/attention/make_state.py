"""From how a request wants to attend to the state that does it."""

from kvpager.attention.in_request import HeavyHittersState, SinksAndWindowState, SnapKVState
from kvpager.attention.selective import SelectiveState
from kvpager.attention.states import LayerState
from kvpager.config.attend import Attend, HeavyHitters, Selective, SinksAndWindow, SnapKV
from kvpager.memory.layout import KVLayout


def make_state(layout: KVLayout, attend: Attend, prompt_tokens: int | None = None) -> LayerState | None:
    """For one sequence, before its first step. None: plain exact attention needs no state.

    ``prompt_tokens``: length of the request's prompt, which SnapKV needs to give anything back, and selective
    attention to compute all of it exactly.
    """
    match attend:
        case Selective():
            return SelectiveState(layout, attend, prompt_tokens or 0)
        case SinksAndWindow():
            return SinksAndWindowState(layout, attend)
        case HeavyHitters():
            return HeavyHittersState(layout, attend)
        case SnapKV():
            return SnapKVState(layout, attend, prompt_tokens)
    return None
