"""Layouts from configs, and refusals by name. Every refusal has a control: the same config without the one option."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig, GPT2Config, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config

from kvpager.errors import ConfigError, UnsupportedModel
from kvpager.integrations.model_layout import SUPPORTED, check_supported, layout_for, max_context
from tests.families import FAMILIES, WINDOW


def windows_of(config: Any) -> list[int | None]:
    """The window of each model layer, as the layout has it."""
    layout = layout_for(config, dtype="float32", page_size=4)
    return [layout.groups[place.group].window for place in layout.places]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_layout_has_the_shape_and_windows_of_the_attention_modules(name: str) -> None:
    model = FAMILIES[name].model()
    layout = layout_for(model.config, dtype="float32", page_size=4)
    modules = [module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    attention = {module.layer_idx: module for module in modules if hasattr(module, "head_dim")}
    assert sorted(attention) == list(range(layout.layers))
    for layer, module in attention.items():
        group = layout.groups[layout.places[layer].group]
        window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None))
        assert (group.head_dim, group.window) == (module.head_dim, window)
        assert group.kv_heads == getattr(module.config, "num_key_value_heads", module.config.num_attention_heads)
    assert sum(window is not None for window in windows_of(model.config)) == FAMILIES[name].windowed


def test_bytes_per_token_follow_from_layers_heads_and_dtype() -> None:
    config = LlamaConfig(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
    layout = layout_for(config, dtype="bfloat16")
    assert (layout.bytes_per_token, layout.page_size) == (30 * 3 * 2 * 64 * 2, 32)
    assert layout_for(config, dtype="bfloat16", page_size="720KiB").page_size == 32
    with pytest.raises(ConfigError, match="float64"):
        layout_for(config, dtype="float64")


def test_qwen2_has_windows_only_from_max_window_layers_on_and_only_if_asked() -> None:
    options = {"num_hidden_layers": 4, "sliding_window": WINDOW, "max_window_layers": 3}
    assert windows_of(Qwen2Config(**options, use_sliding_window=True)) == [None, None, None, WINDOW]
    assert windows_of(Qwen2Config(**options, use_sliding_window=False)) == [None] * 4


def test_a_mistral_without_a_window_has_none() -> None:
    assert windows_of(MistralConfig(num_hidden_layers=2, sliding_window=WINDOW)) == [WINDOW] * 2
    assert windows_of(MistralConfig(num_hidden_layers=2, sliding_window=None)) == [None] * 2


def test_max_context() -> None:
    assert max_context(LlamaConfig(max_position_embeddings=77)) == 77
    assert max_context(GPT2Config(n_positions=78)) == 78
    assert max_context(SimpleNamespace()) is None


REFUSED_FAMILIES = {
    "deepseek_v3": "latents",
    "mamba": "recurrent",
    "jamba": "recurrent",
    "t5": "encoder-decoder",
    "bert": "encoder",
    "bloom": "ALiBi",
    "mpt": "ALiBi",
    "llama4_text": "chunk",
    "gemma3n_text": "read the K and V of others",
    "gemma3": "both directions",
    "qwen2_vl": "both directions",
    "opt": "never compared",
}


@pytest.mark.parametrize("kind", REFUSED_FAMILIES)
def test_a_family_that_is_not_supported_is_refused_by_name_with_the_reason(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    with pytest.raises(UnsupportedModel) as refusal:
        check_supported(config)
    message = str(refusal.value)
    assert repr(kind) in message
    assert REFUSED_FAMILIES[kind] in message
    assert all(name in message for name in SUPPORTED)


def test_something_that_is_no_config_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="SimpleNamespace"):
        check_supported(SimpleNamespace())


def rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **options}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
REFUSED_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    # what, a config that works, the same with the option, what the message says
    "dynamic rope": (
        LlamaConfig(rope_parameters=rope("linear", factor=2.0)),
        LlamaConfig(rope_parameters=rope("dynamic", factor=2.0)),
        "'dynamic'",
    ),
    "longrope": (
        Phi3Config(hidden_size=64, num_attention_heads=4, pad_token_id=None),
        Phi3Config(
            hidden_size=64,
            num_attention_heads=4,
            pad_token_id=None,
            rope_parameters=rope("longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8),
        ),
        "'longrope'",
    ),
    "cross attention": (GPT2Config(), GPT2Config(add_cross_attention=True), "add_cross_attention"),
    "bidirectional": (
        AutoConfig.for_model("gemma3_text"),
        AutoConfig.for_model("gemma3_text", use_bidirectional_attention=True),
        "use_bidirectional_attention",
    ),
    "a window without a size": (
        Qwen2Config(num_hidden_layers=1, layer_types=["full_attention"]),
        Qwen2Config(num_hidden_layers=1, layer_types=["sliding_attention"]),
        "sliding_window is not set",
    ),
    "an unknown layer type": (
        Qwen2Config(num_hidden_layers=1, layer_types=["full_attention"]),
        Qwen2Config(num_hidden_layers=1, layer_types=["chunked_attention"]),
        "'chunked_attention'",
    ),
    "a window of nothing": (
        MistralConfig(sliding_window=1),
        MistralConfig(sliding_window=0),
        "sliding_window of 0",
    ),
}


@pytest.mark.parametrize("what", REFUSED_OPTIONS)
def test_an_option_that_would_run_wrong_is_refused(what: str) -> None:
    works, fails, message = REFUSED_OPTIONS[what]
    check_supported(works)
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        layout_for(fails, dtype="float32")
    assert repr(fails.model_type) in str(refusal.value)


@pytest.mark.parametrize(
    "parameters",
    [
        rope("default"),
        rope("linear", factor=2.0),
        rope("yarn", factor=2.0, original_max_position_embeddings=128),
        rope("llama3", factor=2.0, original_max_position_embeddings=128, **LLAMA3),
    ],
    ids=lambda parameters: parameters["rope_type"],
)
def test_rope_types_whose_angles_depend_on_the_position_alone_are_supported(parameters: dict[str, Any]) -> None:
    check_supported(LlamaConfig(rope_parameters=parameters, max_position_embeddings=256))


def test_a_refused_rope_of_one_layer_type_is_found() -> None:
    config = AutoConfig.for_model("gemma3_text")
    check_supported(config)
    config.rope_parameters["full_attention"] = rope("dynamic", factor=2.0)
    with pytest.raises(UnsupportedModel, match="'dynamic'"):
        check_supported(config)
