"""The server's options: their own table, from the same sources as the engine's."""

import dataclasses
from pathlib import Path

import pytest

from kvpager.config import (
    Options,
    ServerOptions,
    list_options,
    list_server_options,
    load_options,
    load_server_options,
    options_table,
)
from kvpager.errors import ConfigError


def test_without_anything_given_the_defaults_hold() -> None:
    assert load_server_options(environ={}) == ServerOptions()


def test_file_then_environment_then_argument(tmp_path: Path) -> None:
    file = tmp_path / "kvpager.toml"
    file.write_text('port = 1\nmax_body = "1MiB"\npage = false\n')
    options = load_server_options(file, {"KVPAGER_PORT": "2"}, {"max_body": "2MiB"})
    assert (options.port, options.max_body_bytes, options.page) == (2, 2 << 20, False)


def test_a_file_and_the_environment_may_hold_options_of_both_tables(tmp_path: Path) -> None:
    file = tmp_path / "kvpager.toml"
    file.write_text("port = 1\nmax_running = 3\n")
    environ = {"KVPAGER_HOST": "::1", "KVPAGER_SEED": "5", "KVPAGER_API_KEY": "secret"}
    serving, options = load_server_options(file, environ), load_options(file, environ)
    assert (serving.port, serving.host) == (1, "::1")
    assert (options.max_running, options.seed) == (3, 5)


def test_an_argument_must_be_of_the_table_that_is_loaded() -> None:
    with pytest.raises(ConfigError, match="unknown option 'seed'"):
        load_server_options(environ={}, overrides={"seed": 1})
    with pytest.raises(ConfigError, match="unknown option 'port'"):
        load_options(environ={}, overrides={"port": 1})


def test_no_name_is_in_both_tables() -> None:
    assert not {row.name for row in list_options()} & {row.name for row in list_server_options()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("host", "a b"),
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("served_name", ""),
        ("api_keys", 3),
        ("max_body", "0"),
        ("max_seconds", 0),
        ("stall_seconds", None),
        ("drain_seconds", "none"),
        ("status_seconds", 0),
        ("page", "yes"),
        ("metrics_compat", "sglang"),
        ("events", "127.0.0.1:5557"),
        ("otel", ""),
    ],
)
def test_illegal_values_name_the_option_and_what_is_legal(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**{name: value})  # type: ignore[arg-type]
    legal = next(row.legal for row in list_server_options() if row.name == name)
    assert f"option {name!r} can't be {value!r}" in str(caught.value)
    assert legal in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("served_name", "none", None),
        ("served_name", "my model", "my model"),
        ("api_keys", "keys.txt", Path("keys.txt")),
        ("max_seconds", "none", None),
        ("status_seconds", "none", None),
        ("page", "off", False),
        ("events", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
    ],
)
def test_values_as_text(name: str, text: str, value: object) -> None:
    assert getattr(load_server_options(environ={f"KVPAGER_{name.upper()}": text}), name) == value


def test_a_value_in_its_normal_form_stays() -> None:
    options = ServerOptions(api_keys=Path("keys"), port=0)
    assert dataclasses.replace(options) == options


def test_every_default_can_be_written_in_the_environment() -> None:
    for row in list_server_options():
        assert load_server_options(environ={row.environment: row.written}) == ServerOptions()


def test_the_page_has_every_option() -> None:
    assert all(f"| `{row.name}` |" in options_table() for row in (*list_options(), *list_server_options()))
    assert dataclasses.fields(Options)
