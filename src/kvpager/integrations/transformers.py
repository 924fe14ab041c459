"""Paged KV for a Hugging Face decoder: ``attach`` puts its attention on pages, and takes it off again.

    with attach(model, capacity="2 GiB") as paged:
        with paged.open(inputs.input_ids, inputs.attention_mask) as past:
            model.generate(**inputs, past_key_values=past, max_new_tokens=64)   # cache=past from transformers 5.24 on

While attached, every forward pass of the model needs a past that ``open`` gave: a hook before it opens a step on that
past's sequences, a hook after it closes the step. Pages live as long as the attachment; those that are full stay
findable after their past was closed, so a later prompt that begins alike starts behind them. Knows no scheduler: for
many requests at once use the engine. Tested with transformers 5.20 and 5.24, the ends of what is supported.
"""

import inspect
from typing import Any

try:
    from transformers import PreTrainedModel
except ImportError as error:
    from kvpager.errors import MissingExtra

    raise MissingExtra("transformers", "hf", "kvpager.integrations.transformers") from error

from contextlib import ExitStack

from torch import Tensor, nn

from kvpager.assemble import open_cache
from kvpager.attention import select
from kvpager.cache.paged_cache import PagedCache
from kvpager.config import AUTO, DEFAULT_PAGE_SIZE
from kvpager.errors import ConfigError, UnsupportedModel
from kvpager.integrations.attention_function import NAME, paged_attention
from kvpager.integrations.fingerprint import fingerprint_of
from kvpager.integrations.forward_pass import PAST_NAMES, ForwardPass, ModelLimits, check_arguments, named_arguments
from kvpager.integrations.left_padding import guess_pads, read_pads, read_tokens
from kvpager.integrations.model_layout import layout_for, num_positions
from kvpager.integrations.paged_past import PagedPast
from kvpager.memory.layout import QUANTIZED
from kvpager.prefix.hashing import Scope

__all__ = ["AttachedModel", "PagedPast", "attach"]

_ANY_SCOPE = Scope()


def attach(
    model: PreTrainedModel,
    capacity: int | str | None = None,
    *,
    num_blocks: int | None = None,
    page_size: int | str = DEFAULT_PAGE_SIZE,
    kv_dtype: str = AUTO,
    backend: str = "auto",
    rewind: int = 64,
    **cache_options: Any,
) -> "AttachedModel":
    """Puts the attention of ``model`` on pages until the result is closed, or left as a context.

    ``capacity`` in bytes (``"2 GiB"``) or ``num_blocks``: the size of the pool. ``page_size`` in tokens, or bytes of a
    page over all layers. ``kv_dtype``: "int8" or "float8_e4m3" keep K and V in one byte an element, which is lossy; by
    default they are kept as the model computes them. ``backend``: see ``kvpager.attention.select``. ``rewind``: tokens
    that assisted decoding may take back on layers with a window (it drafts about 20); 0 gives pages behind a window
    back at once. All other options are those of ``open_cache``.

    Raises UnsupportedModel for a model whose attention would be computed wrong, and ConfigError for a model in training
    mode or attached already, or a wrong option; the model is unchanged then.
    """
    _check_model(model)
    unknown = sorted(set(cache_options) - set(inspect.signature(open_cache).parameters))
    if unknown:
        raise ConfigError(f"unknown options {', '.join(unknown)}; attach() and open_cache() list what there is")
    layout = layout_for(model.config, dtype=_kv_dtype(model, kv_dtype), page_size=page_size)
    attention = select(layout, backend)
    if cache_options.get("tiers"):  # what others may have stored there must be of these weights
        cache_options.setdefault("fingerprint", fingerprint_of(model))
    cache = open_cache(
        layout, capacity, num_blocks=num_blocks, device=str(model.device), rewind=rewind, **cache_options
    )
    return AttachedModel(model, cache, attention)


def _kv_dtype(model: PreTrainedModel, kv_dtype: str) -> str:
    model_dtype = str(model.dtype).removeprefix("torch.")
    if kv_dtype in (AUTO, model_dtype):
        return model_dtype
    if kv_dtype not in QUANTIZED:
        raise ConfigError(
            f"kv_dtype {kv_dtype!r} is not supported; leave it at 'auto' ({model_dtype}), or choose one of "
            f"{', '.join(QUANTIZED)}"
        )
    return kv_dtype


def _check_model(model: object) -> None:
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"attach() takes a transformers model, not {type(model).__name__}; unwrap it first")
    if not type(model.base_model).__module__.startswith("transformers.models."):
        raise UnsupportedModel(
            f"{type(model.base_model).__name__} is not one of transformers' own models; its outputs were never compared"
        )
    if model.config._attn_implementation == NAME:
        raise ConfigError("this model is attached already (or run by an engine); close that first")
    _check_eval(model)
    if len({parameter.device for parameter in model.parameters()}) != 1 or model.device.type == "meta":
        raise ConfigError("the model must lie on one device, as its pages do; load it without device_map")


def _check_eval(model: nn.Module) -> None:
    if model.training:
        raise ConfigError("the model is in training mode, and pages keep no gradients; call model.eval() first")


class AttachedModel:
    """A model on pages. ``cache`` is its PagedCache: statistics, sizes, checks."""

    def __init__(self, model: PreTrainedModel, cache: PagedCache, backend: Any) -> None:
        self.model = model
        self.cache = cache
        self.is_closed = False
        self._backend = backend
        self._limits = ModelLimits(model.get_input_embeddings().num_embeddings, num_positions(model.config))
        self._weights = _weights_now(model)
        self._pasts: list[PagedPast] = []
        self._pass: ForwardPass | None = None
        self._contexts = ExitStack()
        self._contexts.enter_context(paged_attention(model))
        self._contexts.callback(model.register_forward_pre_hook(self._before_pass, with_kwargs=True).remove)
        after = model.register_forward_hook(self._after_pass, with_kwargs=True, always_call=True)
        self._contexts.callback(after.remove)

    # -- pasts --------------------------------------------------------------------------------------------------

    def open(self, input_ids: Tensor, attention_mask: Tensor | None = None, *, scope: Scope = _ANY_SCOPE) -> PagedPast:
        """Pages for a batch of prompts: give it to ``generate`` or to the model as ``past_key_values``.

        ``input_ids`` [rows, columns], padded on the left; ``attention_mask`` [rows, columns] says what is padding
        (without it, padding is guessed from the model's pad token, and a wrong guess is an error later, not a wrong
        answer). ``scope`` keeps content apart that must not be shared, such as tenants.
        """
        self._check_open()
        ids = read_tokens(input_ids, self._limits.vocabulary)
        pads = guess_pads(ids, self._pad_token()) if attention_mask is None else read_pads(attention_mask, *ids.shape)
        self._forget_old_weights()
        past = PagedPast(self.cache, ids, pads, attention_mask is None, scope, self._close_past)
        self._pasts.append(past)
        return past

    def _pad_token(self) -> int | None:
        for config in (getattr(self.model, "generation_config", None), self.model.config):
            pad = getattr(config, "pad_token_id", None)
            if isinstance(pad, int):
                return pad
        return None

    def _close_past(self, past: PagedPast) -> None:
        self._end_interrupted_pass()
        self._pasts.remove(past)

    def _forget_old_weights(self) -> None:
        """Content computed with other weights must not be found any more."""
        weights = _weights_now(self.model)
        if weights != self._weights:
            self.cache.clear_prefix()
            self._weights = weights

    # -- around every forward pass ------------------------------------------------------------------------------

    def _before_pass(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        self._end_interrupted_pass()
        _check_eval(model)
        arguments = named_arguments(model, args, kwargs)
        past = next((arguments[name] for name in PAST_NAMES if name in arguments), None)
        if not isinstance(past, PagedPast):
            raise ConfigError(
                "this model is attached to pages: give past_key_values=paged.open(input_ids) to the model or to "
                "generate(), or close the attachment"
            )
        if past not in self._pasts:
            past.check_open()
            raise ConfigError("these pages were opened for another model; open them with this one")
        check_arguments({"output_attentions": self.model.config.output_attentions} | arguments)
        self._pass = ForwardPass(self._backend, past, arguments, self._limits)
        return (), self._pass.arguments

    def _after_pass(self, model: nn.Module, args: object, kwargs: object, output: object) -> None:
        """Called after every pass, with no output where it raised."""
        if self._pass is not None:
            this, self._pass = self._pass, None
            this.close(succeeded=output is not None)

    def _end_interrupted_pass(self) -> None:
        """A pass that was left by Ctrl-C: torch calls no hook then."""
        self._after_pass(self.model, None, None, None)

    # -- order --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_closed:
            raise ConfigError("the attachment was closed; attach the model again")

    def close(self) -> None:
        """Gives all pages back and restores the model. Closing twice does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._end_interrupted_pass()
        for past in list(self._pasts):
            past.close()
        self._contexts.close()
        self.cache.close()

    def __enter__(self) -> "AttachedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _weights_now(model: nn.Module) -> list[tuple[int, int]]:
    """Where every parameter lies and how often it was written: changes when weights do, or an adapter comes or goes."""
    return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters()]
