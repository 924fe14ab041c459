"""How many bytes of KV a token takes, as the user says or as a model's config does. Loads no weights."""

import json
from types import SimpleNamespace

from kvpager.errors import ConfigError

_TYPE_BYTES = 2  # of bfloat16 and float16, which models run in unless their config says otherwise


def kv_bytes_per_token(given: int | None, model: str | None) -> int | None:
    """From --bytes-per-token or --model; None where neither is given. Raises ConfigError, ModelError."""
    if given is not None and model is not None:
        raise ConfigError("--bytes-per-token and --model both say what a token weighs; give one of them")
    if given is not None and given < 1:
        raise ConfigError(f"--bytes-per-token must be at least 1, not {given}")
    return given if model is None else _of_model(model)


def _of_model(name: str) -> int:
    from kvpager.models.catalog import RECIPES

    if name in RECIPES:  # known without the files
        facts = RECIPES[name].facts
        return 2 * facts.layers * facts.kv_heads * facts.head_dim * _TYPE_BYTES
    from kvpager.integrations.model_layout import layout_for
    from kvpager.models.source import SourceKind, resolve

    source = resolve(name)
    if source.kind is SourceKind.GGUF:
        raise ConfigError(f"{name} has no config.json to tell its layers; give --bytes-per-token instead")
    config = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    layout = layout_for(_Config(**config), dtype=dtype, page_size=1)
    return layout.block_bytes * layout.num_groups


class _Config(SimpleNamespace):
    """A config.json as attributes; what it leaves out is None."""

    def __getattr__(self, name: str) -> None:
        return None
