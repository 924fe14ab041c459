"""Continuous batching of requests over one model and one paged cache. Names are loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvpager.cache.retention_terms import Retained, Retention, Verdict
    from kvpager.engine.engine import Engine
    from kvpager.engine.guide import Guide
    from kvpager.engine.prompt_logprobs import PromptLogprob
    from kvpager.engine.request import Completion, FinishReason, Request, TokenEvent
    from kvpager.engine.sampling_params import Sampling
    from kvpager.engine.statistics import EngineStatistics
    from kvpager.eviction.policy import StopReason

_HOME = {
    "Completion": "kvpager.engine.request",
    "Engine": "kvpager.engine.engine",
    "EngineStatistics": "kvpager.engine.statistics",
    "FinishReason": "kvpager.engine.request",
    "Guide": "kvpager.engine.guide",
    "PromptLogprob": "kvpager.engine.prompt_logprobs",
    "Request": "kvpager.engine.request",
    "Retained": "kvpager.cache.retention_terms",
    "Retention": "kvpager.cache.retention_terms",
    "Sampling": "kvpager.engine.sampling_params",
    "StopReason": "kvpager.eviction.policy",
    "TokenEvent": "kvpager.engine.request",
    "Verdict": "kvpager.cache.retention_terms",
}

__all__ = [
    "Completion",
    "Engine",
    "EngineStatistics",
    "FinishReason",
    "Guide",
    "PromptLogprob",
    "Request",
    "Retained",
    "Retention",
    "Sampling",
    "StopReason",
    "TokenEvent",
    "Verdict",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kvpager.engine' has no attribute {name!r}")
