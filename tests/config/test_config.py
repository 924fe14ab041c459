"""Sizes, free memory under made-up hosts, and the options: legal values, sources and their order, and the errors."""

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.config import (
    MAX_SIZE,
    DiskTier,
    HostTier,
    Options,
    auto_host_size,
    auto_pool_size,
    available_memory,
    format_size,
    list_options,
    load_options,
    options_table,
    parse_size,
    resolve_capacity,
    resolve_host_capacity,
    total_memory,
)
from kvpager.config.quotas import TenantQuota
from kvpager.errors import ConfigError

KIB, MIB, GIB = 1024, 1024**2, 1024**3

# ---------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (4096, 4096),
        ("1", 1),
        ("4096", 4096),
        ("7B", 7),
        ("2GiB", 2 * GIB),
        ("2 GiB", 2 * GIB),
        (" 2\tgib ", 2 * GIB),
        ("2Gi", 2 * GIB),
        ("2g", 2 * GIB),
        ("1.5g", 3 * GIB // 2),
        (".5k", 512),
        ("1.K", 1024),
        ("512MB", 512_000_000),
        ("16KiB", 16 * KIB),
        ("3TB", 3 * 10**12),
        ("1PiB", 2**50),
        ("0.1KB", 100),
        ("1.9999B", 1),
        ("+8", 8),
        (MAX_SIZE, MAX_SIZE),
    ],
)
def test_parse_size_reads(text: str | int, size: int) -> None:
    assert parse_size(text) == size


def test_parse_size_takes_a_share_of_the_total() -> None:
    assert parse_size("80%", total=1000) == 800
    assert parse_size("12.5 %", total=80) == 10
    assert parse_size("100%", total=7) == 7
    assert parse_size("50%", total=3) == 1  # rounded down to a whole byte


def test_parse_size_is_exact_where_floating_point_is_not() -> None:
    assert parse_size("8388607.1TB") == 8388607_100_000_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (0, "less than one byte"),
        ("0", "less than one byte"),
        ("0 GiB", "less than one byte"),
        (-5, "less than one byte"),
        ("-5GiB", "less than one byte"),
        ("0.5B", "less than one byte"),
        ("nan", "can't be read"),
        ("NaN GiB", "can't be read"),
        ("inf", "can't be read"),
        ("1e3", "can't be read"),
        ("1,5GiB", "can't be read"),
        ("", "can't be read"),
        ("GiB", "can't be read"),
        ("2 Gi B", "can't be read"),
        ("\u0663 GiB", "can't be read"),
        ("9" * 5000, "can't be read"),
        ("auto", "'auto' is not a size"),
        ("2GIG", "unknown unit 'GIG'; did you mean 'GiB'"),
        ("2 mibb", "unknown unit 'mibb'; did you mean 'MiB'"),
        ("2 potatoes", "unknown unit 'potatoes'; use B, KiB"),
        ("9000PiB", "more than 8192 PiB"),
        (10**100, "more than 8192 PiB"),
        ("80%", "nothing is known here to take it of"),
        (float("nan"), "whole number of bytes"),
        (1.5, "whole number of bytes"),
        (True, "whole number of bytes"),
        (None, "whole number of bytes"),
    ],
)
def test_parse_size_refuses(text: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_size(text)  # type: ignore[arg-type]


def test_parse_size_refuses_impossible_shares() -> None:
    with pytest.raises(ConfigError, match="at most 100%"):
        parse_size("101%", total=1000)
    with pytest.raises(ConfigError, match="less than one byte"):
        parse_size("0%", total=1000)
    with pytest.raises(ConfigError, match="less than one byte"):
        parse_size("80%", total=0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (23_040, "22.5 KiB"),
        (MIB - 1, "1 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (MAX_SIZE, "8192 PiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=1, max_value=2**60))
def test_a_formatted_size_reads_back_to_a_twentieth(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= size / 20


@given(st.text(max_size=20))
def test_any_text_is_a_positive_size_or_a_config_error(text: str) -> None:
    try:
        size = parse_size(text, total=GIB)
    except ConfigError:
        return
    assert 1 <= size <= MAX_SIZE


# --------------------------------------------------------------------------------------------------------- memory


class Host:
    """A folder that looks like the /proc and /sys of a host with 64 GiB, 48 of them available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:  {64 * MIB} kB\nMemFree:  {9 * MIB} kB\nMemAvailable:  {48 * MIB} kB\n")

    def write(self, path: str, text: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}")

    def group(self, folder: str, **values: object) -> None:
        """Files of a cgroup; ``memory_max`` is memory.max."""
        for name, value in values.items():
            self.write(f"sys/fs/cgroup/{folder}/{name.replace('_', '.', 1)}", value)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_memory_without_a_cgroup_is_the_hosts(host: Host) -> None:
    assert total_memory(host.root) == 64 * GIB
    assert available_memory(host.root) == 48 * GIB


def test_memory_in_a_cgroup_without_limits_is_the_hosts(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/user.slice/mine\n")
    host.group("user.slice/mine", memory_max="max\n", memory_high="max\n", memory_current=GIB)
    host.group("", memory_stat="inactive_file 5\n")
    assert (total_memory(host.root), available_memory(host.root)) == (64 * GIB, 48 * GIB)


def test_memory_respects_version_2_and_counts_droppable_file_cache_as_free(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pod\n")
    host.group("pod", memory_max=8 * GIB, memory_current=6 * GIB, memory_stat=f"anon 1\ninactive_file {4 * GIB}\n")
    assert total_memory(host.root) == 8 * GIB
    assert available_memory(host.root) == 6 * GIB


def test_memory_respects_the_soft_limit_of_version_2(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pod\n")
    host.group("pod", memory_max=8 * GIB, memory_high=5 * GIB, memory_current=GIB)
    assert (total_memory(host.root), available_memory(host.root)) == (5 * GIB, 4 * GIB)


def test_memory_respects_the_groups_around_ours(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/a/b/c\n")
    host.group("a", memory_max=16 * GIB, memory_current=15 * GIB)
    host.group("a/b", memory_max=4 * GIB, memory_current=GIB)
    host.group("a/b/c", memory_max="max")
    assert total_memory(host.root) == 4 * GIB
    assert available_memory(host.root) == GIB  # the sibling groups of b took the rest of a


def test_memory_in_a_container_that_sees_its_own_group_as_the_mount(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/../../docker/0123abcd\n")
    host.group("", memory_max=2 * GIB, memory_current=GIB)
    assert (total_memory(host.root), available_memory(host.root)) == (2 * GIB, GIB)


def test_memory_respects_version_1(host: Host) -> None:
    host.write("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/0123abcd\n")
    host.group("cpu/x", memory_limit_in_bytes=1)  # not a memory group
    host.group("memory", memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=60 * GIB)
    host.group(
        "memory/docker/0123abcd",
        memory_limit_in_bytes=3 * GIB,
        memory_usage_in_bytes=2 * GIB,
        memory_stat=f"inactive_file 0\ntotal_inactive_file {GIB}\n",
    )
    assert (total_memory(host.root), available_memory(host.root)) == (3 * GIB, 2 * GIB)


def test_memory_respects_both_versions_side_by_side(host: Host) -> None:
    host.write("proc/self/cgroup", "4:memory:/one\n0::/two\n")
    host.group("memory/one", memory_limit_in_bytes=6 * GIB, memory_usage_in_bytes=GIB)
    host.group("unified/two", memory_max=7 * GIB, memory_current=6 * GIB)
    assert (total_memory(host.root), available_memory(host.root)) == (6 * GIB, GIB)


def test_memory_over_the_limit_is_none_not_negative(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pod\n")
    host.group("pod", memory_max=GIB, memory_current=2 * GIB)
    assert available_memory(host.root) == 0


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\n", "MemTotal:\n", "MemTotal:  4 kB\n"])
def test_a_host_that_does_not_tell_its_memory_is_an_error_with_a_remedy(host: Host, text: str) -> None:
    host.write("proc/meminfo", text)
    with pytest.raises(ConfigError, match="give 'capacity' in bytes"):
        available_memory(host.root)


def test_memory_of_this_machine() -> None:
    assert 0 < available_memory() <= total_memory()


def test_auto_pool_size_is_seventy_percent_of_what_is_free() -> None:
    assert auto_pool_size(1000) == 700
    with pytest.raises(ConfigError, match="no memory is free"):
        auto_pool_size(1)


def test_resolve_capacity() -> None:
    assert resolve_capacity("auto", available=1000) == 700
    assert resolve_capacity(" AUTO ", available=1000) == 700
    assert resolve_capacity("50%", available=1000) == 500
    assert resolve_capacity("2GiB", available=1000) == 2 * GIB  # an explicit size is taken at its word
    assert resolve_capacity(4096, available=1000) == 4096


def test_auto_host_size_is_a_quarter_of_all_memory_and_never_more_than_is_free() -> None:
    assert auto_host_size(total=1000, free=900) == 250
    assert auto_host_size(total=1000, free=100) == 85
    assert auto_host_size(total=1000, free=-5) == 0


def test_a_host_tier_s_capacity(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pod\n")
    host.group("pod", memory_max=8 * GIB, memory_current=GIB)
    assert resolve_host_capacity("auto", root=host.root) == 2 * GIB  # of the group's memory, not of the machine's
    assert resolve_host_capacity("auto", pool_bytes=6 * GIB, root=host.root) == GIB * 85 // 100
    assert resolve_host_capacity("50%", root=host.root) == 4 * GIB
    assert resolve_host_capacity("8GiB", root=host.root) == 8 * GIB
    with pytest.raises(ConfigError, match="more than the 8 GiB that this process may use"):
        resolve_host_capacity("9GiB", root=host.root)
    with pytest.raises(ConfigError, match="no memory is free for a host tier"):
        resolve_host_capacity("auto", pool_bytes=7 * GIB, root=host.root)


# -------------------------------------------------------------------------------------------------------- options


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config file to be written by the test."""
    return tmp_path / "kvpager.toml"


def test_defaults() -> None:
    options = load_options(environ={})
    assert options == Options()
    assert (options.capacity, options.page_size, options.eviction) == ("auto", 32, "lru")
    assert (options.max_running, options.max_batch_tokens, options.max_waiting) == (256, 512, 1024)


def test_later_sources_win(config: Path) -> None:
    config.write_text("max_running = 1\nmax_waiting = 1\nmax_batch_tokens = 1\n")
    environ = {"KVPAGER_MAX_WAITING": "2", "KVPAGER_MAX_BATCH_TOKENS": "2", "PATH": "x"}
    options = load_options(config, environ, {"max_batch_tokens": 3})
    assert (options.max_running, options.max_waiting, options.max_batch_tokens) == (1, 2, 3)


def test_overrides_are_values_or_text_and_none_is_not_given() -> None:
    environ = {"KVPAGER_SEED": "7"}
    assert load_options(environ=environ, overrides={"seed": None}).seed == 7
    assert load_options(environ=environ, overrides={"seed": 9}).seed == 9
    assert load_options(environ=environ, overrides={"seed": "9"}).seed == 9
    assert load_options(environ=environ, overrides={"seed": "none"}).seed is None
    assert load_options(environ={}, overrides={"debug": "yes", "max_context": " 12 "}) == Options(
        debug=True, max_context=12
    )


def test_this_process_s_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPAGER_MAX_RUNNING", "17")
    assert load_options().max_running == 17


@pytest.mark.parametrize("text", ["true", "1", "YES", "on", " True "])
def test_flags_in_the_environment(text: str) -> None:
    assert load_options(environ={"KVPAGER_DETERMINISTIC": text}).deterministic is True


@pytest.mark.parametrize("text", ["false", "0", "No", "OFF"])
def test_flags_off_in_the_environment(text: str) -> None:
    assert load_options(environ={"KVPAGER_PREFIX_CACHE": text}).prefix_cache is False


def test_kv_debug_is_short_for_the_debug_option() -> None:
    assert load_options(environ={"KV_DEBUG": "1"}).debug is True
    assert load_options(environ={"KV_DEBUG": "1", "KVPAGER_DEBUG": "0"}).debug is False
    with pytest.raises(ConfigError, match=r"'debug' can't be 'maybe' \(environment, KV_DEBUG\)"):
        load_options(environ={"KV_DEBUG": "maybe"})


def test_reserved_and_empty_variables_are_not_options() -> None:
    assert load_options(environ={"KVPAGER_HOME": "/x", "KVPAGER_MAX_RUNNING": ""}) == Options()


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("page_size", "16", 16),
        ("page_size", "16KiB", "16KiB"),
        ("capacity", "80%", "80%"),
        ("capacity", 4096, 4096),
        ("device", "cuda:3", "cuda:3"),
        ("eviction_threshold", 0, 0.0),
        ("max_context", "none", None),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("tiers", [], ()),
        ("tiers", ["host=8GiB", DiskTier("/kv", "1GiB")], (HostTier("8GiB"), DiskTier("/kv", "1GiB"))),
        ("quotas", ["a=2GiB", "b=none,weight=2"], (TenantQuota("a", "2GiB"), TenantQuota("b", None, 2.0))),
        ("pinned_share", 1, 1.0),
        ("resident_share", 1, 1.0),
        ("window", "8MiB", "8MiB"),
        ("window", 1 << 20, 1 << 20),
        ("attend", " Exact", "exact"),
        ("attend", "selective:budget=4096", "selective:budget=4096,sinks=64,recent=256,reuse=1"),
        ("load_deadline", 2, 2.0),
        ("load_deadline", "none", None),
    ],
)
def test_values_come_in_their_normal_form(name: str, value: object, read: object) -> None:
    result = getattr(Options(**{name: value}), name)  # type: ignore[arg-type]
    assert result == read
    assert type(result) is type(read)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("model", 3),
        ("dtype", "int4"),
        ("device", "tpu"),
        ("capacity", 0),
        ("capacity", "-1GiB"),
        ("capacity", "lots"),
        ("capacity", True),
        ("capacity", 1.5),
        ("page_size", 0),
        ("page_size", "0"),
        ("page_size", "80%"),
        ("page_size", 16.0),
        ("page_size", False),
        ("kv_dtype", "float64"),
        ("eviction", "L R U"),
        ("eviction_threshold", 1),
        ("eviction_threshold", -0.1),
        ("eviction_threshold", float("nan")),
        ("eviction_threshold", True),
        ("pinned_share", 1.1),
        ("resident_share", 0),
        ("resident_share", 1.1),
        ("resident_share", True),
        ("demand_paging", "on"),
        ("window", 0),
        ("window", "80%"),
        ("window", True),
        ("attend", "mostly"),
        ("attend", "selective"),
        ("attend", "selective:budget=0"),
        ("attend", 3),
        ("quotas", ["=2GiB"]),
        ("quotas", ["a"]),
        ("quotas", ["a=lots"]),
        ("quotas", ["a=1GiB,weight=0"]),
        ("quotas", ["a=1GiB,height=2"]),
        ("quotas", "a=1GiB"),
        ("prefix_cache", 1),
        ("allocation", "buddy"),
        ("partial_hits", "true"),
        ("max_running", 0),
        ("max_running", "256"),
        ("max_running", True),
        ("max_batch_tokens", 512.0),
        ("max_waiting", 2**63),
        ("max_context", 0),
        ("attention", ""),
        ("tiers", "host=8GiB"),
        ("tiers", None),
        ("tiers", [3]),
        ("write_back", "never"),
        ("load_deadline", 0),
        ("load_deadline", float("inf")),
        ("load_deadline", float("nan")),
        ("load_deadline", True),
        ("seed", -1),
        ("seed", 2**64),
        ("debug", None),
    ],
)
def test_illegal_values_name_the_option_the_value_and_what_is_legal(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(**{name: value})  # type: ignore[arg-type]
    legal = next(row.legal for row in list_options() if row.name == name)
    assert f"option {name!r} can't be {value!r} (argument)" in str(caught.value)
    assert legal in str(caught.value)


def test_errors_name_the_source(config: Path) -> None:
    config.write_text('max_running = "256"\n')
    with pytest.raises(ConfigError, match=rf"'max_running' can't be '256' \(file {config}\): give a whole number"):
        load_options(config, {})
    with pytest.raises(ConfigError, match=r"can't be 'many' \(environment, KVPAGER_MAX_RUNNING\)"):
        load_options(environ={"KVPAGER_MAX_RUNNING": "many"})
    with pytest.raises(ConfigError, match=r"'max_running' can't be -1 \(argument\)"):
        load_options(environ={}, overrides={"max_running": -1})


def test_tiers_come_from_each_source(config: Path) -> None:
    tiers = (HostTier("1GiB"), DiskTier("/kv", "2GiB"))
    config.write_text('tiers = ["host=1GiB", "disk=/kv,size=2GiB"]\n')
    assert load_options(config, {}).tiers == tiers
    assert load_options(environ={"KVPAGER_TIERS": "host=1GiB; disk=/kv,size=2GiB"}).tiers == tiers
    assert load_options(environ={}, overrides={"tiers": ["host=1GiB", "disk=/kv,size=2GiB"]}).tiers == tiers


def test_a_password_in_a_url_is_not_shown() -> None:
    tiers = ["remote=redis://me:secret@cache:6379/0", "host=1GiB"]
    for text in (
        ";".join(tiers),
        "remote=x,y=redis://me:secret@cache/0",
        "remote=redis://me:a,secret@cache/0",
        "remote=redis://me:a/secret@cache/0,tries=0",
        "redis://me:a@secret@cache/0",
    ):
        with pytest.raises(ConfigError) as caught:
            load_options(environ={"KVPAGER_TIERS": text})
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="nearest first") as caught:
        Options(tiers=tiers)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(load_options(environ={"KVPAGER_TIERS": tiers[0]}))


def test_errors_cut_long_values_short() -> None:
    for value in ("9" * 5000, 10**5000, [1] * 5000, [10**5000]):
        with pytest.raises(ConfigError) as caught:
            load_options(environ={}, overrides={"max_running": value})
        assert len(str(caught.value)) < 200


def test_unknown_names_get_a_suggestion(config: Path) -> None:
    config.write_text("max_runing = 3\n")
    with pytest.raises(ConfigError, match=rf"'max_runing' \(file {config}\); did you mean 'max_running'"):
        load_options(config, {})
    with pytest.raises(ConfigError, match=r"'KVPAGER_PAGESIZE' \(environment\); did you mean 'KVPAGER_PAGE_SIZE'"):
        load_options(environ={"KVPAGER_PAGESIZE": "3"})
    with pytest.raises(ConfigError, match=r"'max-running' \(argument\); did you mean 'max_running'"):
        load_options(environ={}, overrides={"max-running": 3})
    with pytest.raises(ConfigError, match="known are model, dtype"):
        load_options(environ={}, overrides={"zzz": 3})


def test_an_unknown_variable_s_value_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load_options(environ={"KVPAGER_API_TOKEN": "secret"})
    assert "secret" not in str(caught.value)


def test_variables_are_spelled_in_capitals() -> None:
    with pytest.raises(ConfigError, match="did you mean 'KVPAGER_SEED'"):
        load_options(environ={"KVPAGER_seed": "1"})


@pytest.mark.parametrize(
    "content",
    [b"max_running 3", b"\xff\xfe", b"x = " + b"[" * 20_000, b"seed = " + b"9" * 5000, b"seed = 1\nseed = 2"],
    ids=["no-equals", "not-utf8", "deep", "long-number", "twice"],
)
def test_a_file_that_is_not_toml(config: Path, content: bytes) -> None:
    config.write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        load_options(config, {})


def test_a_file_that_can_t_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        load_options(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_options(os.fspath(tmp_path), {})


def test_tables_in_a_file_are_unknown_options(config: Path) -> None:
    config.write_text("[engine]\nseed = 1\n")
    with pytest.raises(ConfigError, match="unknown option 'engine'"):
        load_options(config, {})


@given(
    st.dictionaries(
        st.sampled_from([row.environment for row in list_options()]),
        st.text(max_size=12) | st.sampled_from(["auto", "none", "true", "16", "2GiB", "0.5"]),
    )
)
def test_any_environment_gives_options_or_a_config_error(environ: dict[str, str]) -> None:
    try:
        options = load_options(environ=environ)
    except ConfigError:
        return
    assert Options(**dataclasses.asdict(options)) == options


def test_options_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().seed = 3  # type: ignore[misc]


def test_replacing_a_value_checks_it() -> None:
    with pytest.raises(ConfigError, match="'seed'"):
        dataclasses.replace(Options(), seed=-1)


def test_the_table_has_every_option_once_with_all_its_words() -> None:
    rows = list_options()
    assert [row.name for row in rows] == [option.name for option in dataclasses.fields(Options)]
    assert [row.environment for row in rows] == [f"KVPAGER_{row.name.upper()}" for row in rows]
    for row in rows:
        assert row.legal
        assert row.meaning.endswith(".")
        assert row.change.endswith(".")
        assert row.is_switch == isinstance(row.default, bool)
        assert f"| `{row.name}` |" in options_table()


def test_every_default_can_be_written_in_the_environment() -> None:
    for row in list_options():
        assert load_options(environ={row.environment: row.written}) == Options()


def test_no_cell_of_the_table_breaks_it() -> None:
    rows = [line for line in options_table().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6}
