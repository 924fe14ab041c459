"""From a Hugging Face config to a KVLayout, and which models are computed exactly here. All others are refused by name.

A family is in the list only after its outputs were compared with the family's own attention, token for token. Inside a
family, the options that change what a query sees, or what its angles depend on, are checked too. Reads configs only:
knows no weights, no cache, no forward pass, and imports no transformers.

Their window is ours: with ``sliding_window`` w, the query at position p sees the keys at positions above p - w, itself
included, which is ``LayerSpec.window`` = w. Families differ only in where the config says which layers have one.
"""

from collections.abc import Callable
from typing import Any

from kvpager.config import DEFAULT_PAGE_SIZE
from kvpager.errors import UnsupportedModel
from kvpager.memory.layout import KVLayout, LayerSpec

Config = Any  # transformers' PreTrainedConfig, or anything with its attributes
Windows = list[int | None]  # one a layer


def _no_windows(config: Config) -> Windows:
    return [None] * config.num_hidden_layers


def _same_window(config: Config) -> Windows:
    """One ``sliding_window`` for all layers, or None."""
    return [config.sliding_window] * config.num_hidden_layers


def _window_by_layer_type(config: Config) -> Windows:
    """``layer_types[i]`` says whether layer i has the window; where absent, every layer is full."""
    types = config.layer_types
    if len(types) != config.num_hidden_layers:
        raise _refusal(config, f"layer_types names {len(types)} layers of {config.num_hidden_layers}")
    windows: Windows = []
    for layer, kind in enumerate(types):
        if kind == "full_attention":
            windows.append(None)
        elif kind == "sliding_attention":
            if config.sliding_window is None:
                raise _refusal(config, f"layer {layer} slides, but sliding_window is not set")
            windows.append(config.sliding_window)
        else:
            raise _refusal(config, f"layer {layer} has attention of type {kind!r}")
    return windows


# model_type -> the window of each layer, as the family's own modeling code reads it
_WINDOWS_OF: dict[str, Callable[[Config], Windows]] = {
    "gemma2": _window_by_layer_type,
    "gemma3_text": _window_by_layer_type,
    "gpt2": _no_windows,
    "gpt_oss": _window_by_layer_type,
    "granite": _no_windows,
    "llama": _no_windows,
    "mistral": _same_window,
    "mixtral": _same_window,
    "olmo2": _no_windows,
    "phi3": _same_window,
    "qwen2": _window_by_layer_type,
    "qwen3": _window_by_layer_type,
    "qwen3_moe": _same_window,
    "smollm3": _window_by_layer_type,
}

SUPPORTED = tuple(_WINDOWS_OF)  # model types, sorted

_LATENT = "its KV cache holds latents (MLA), not keys and values per head"
_RECURRENT = "it keeps a recurrent state (state space or linear attention), which has no pages"
_ENCODER = "it is an encoder or an encoder-decoder, and only decoders have a paged cache here"
_ALIBI = "its attention scores carry a bias by distance (ALiBi or learned), which the kernels don't add"
_CHUNKED = "some layers attend in chunks, and a chunk is not a window"
_SHARED = "some layers read the K and V of others, which a page per layer can't express"
_MEDIA = "images attend in both directions; load the text model alone where there is one"

_WHY_NOT: dict[str, str] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "minicpm3", "glm4_moe_lite", "mistral4"), _LATENT),
    **dict.fromkeys(("longcat_flash", "kimi_k25", "sarvam_mla", "youtu"), _LATENT),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "jamba", "bamba", "zamba2"), _RECURRENT),
    **dict.fromkeys(("falcon_h1", "granitemoehybrid", "nemotron_h", "recurrent_gemma", "lfm2", "lfm2_moe"), _RECURRENT),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe", "minimax", "kimi_linear", "olmo_hybrid"), _RECURRENT),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "t5gemma"), _ENCODER),
    **dict.fromkeys(("bert", "roberta", "xlm_roberta", "distilbert", "modernbert", "deberta_v2", "electra"), _ENCODER),
    **dict.fromkeys(("bloom", "mpt", "falcon"), _ALIBI),
    **dict.fromkeys(("llama4", "llama4_text"), _CHUNKED),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"), _SHARED),
    **dict.fromkeys(("gemma3", "paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mllama", "llava"), _MEDIA),
}

_STATIC_ROPE = ("default", "linear", "llama3", "yarn")  # angles that depend on the position alone


def _refusal(config: Config, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"models of type {config.model_type!r} can't run on pages as configured: {reason}")


def check_supported(config: Config) -> None:
    """Raises UnsupportedModel, with the reason and what works, unless models of this config run exactly here."""
    kind = getattr(config, "model_type", "") or type(config).__name__
    if kind not in _WINDOWS_OF:
        reason = _WHY_NOT.get(kind) or (_ENCODER if getattr(config, "is_encoder_decoder", False) else "")
        because = f": {reason}" if reason else ", because its outputs were never compared here"
        raise UnsupportedModel(f"models of type {kind!r} are not supported{because}. Supported: {', '.join(SUPPORTED)}")
    _check_options(config)
    _check_rope(config)
    _layer_specs(config)


def layout_for(config: Config, *, dtype: str, page_size: int | str = DEFAULT_PAGE_SIZE) -> KVLayout:
    """The KV layout of a model: its layers, their heads and windows.

    ``dtype`` names the model's own dtype (``"bfloat16"``), or a quantized one (``"int8"``); ``page_size`` is in tokens,
    or a size in bytes of one page over all layers (``"16KiB"``). Raises UnsupportedModel, and ConfigError where dtype
    or page size are wrong.
    """
    check_supported(config)
    return KVLayout.mixed(_layer_specs(config), dtype, page_size)


def max_context(config: Config) -> int | None:
    """Positions the model was made for, prompt and output together; None where the config does not say."""
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def num_positions(config: Config) -> int | None:
    """Positions the model has embeddings for; None where positions are angles, which go on past ``max_context``."""
    return max_context(config) if config.model_type == "gpt2" else None


def _layer_specs(config: Config) -> list[LayerSpec]:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if heads % kv_heads:
        raise _refusal(config, f"{heads} query heads can't share {kv_heads} KV heads evenly")
    windows = _WINDOWS_OF[config.model_type](config)
    for layer, window in enumerate(windows):
        if window is not None and window < 1:
            raise _refusal(config, f"layer {layer} has a sliding_window of {window} tokens")
    return [LayerSpec(kv_heads, head_dim, window) for window in windows]


def _check_options(config: Config) -> None:
    for option, meaning in (
        ("is_encoder_decoder", "it is an encoder-decoder"),
        ("add_cross_attention", "cross attention reads states that have no pages"),
        ("use_bidirectional_attention", "queries would see later tokens, whose pages are not written yet"),
    ):
        if getattr(config, option, None):
            raise _refusal(config, f"{option} is set: {meaning}")


def _check_rope(config: Config) -> None:
    """Refuses angles that depend on how long the sequence is: keys written earlier would need other ones later."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [each for each in parameters.values() if isinstance(each, dict)]  # one per layer type (Gemma 3)
    for each in nested or [parameters]:
        kind = each.get("rope_type", each.get("type", "default"))
        if kind not in _STATIC_ROPE:
            raise _refusal(
                config,
                f"rope type {kind!r}: its angles depend on the sequence length, so keys can't be kept or shared. "
                f"Supported: {', '.join(_STATIC_ROPE)}",
            )
