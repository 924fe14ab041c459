"""The shipped rules: made from the table, accepted by promtool, and firing exactly where they should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kvpager.metrics.alert_rules import RULES
from kvpager.metrics.catalogue import BY_NAME
from kvpager.metrics.rules_file import expression, rules_file
from tests.metrics.alert_courses import COURSES
from tests.metrics.promtool_file import promtool_file

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES_FILE, TESTS_FILE = FOLDER / "kvpager.rules.yml", FOLDER / "kvpager.rules.test.yml"
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package is prometheus)"
)


def _promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_the_shipped_rules_are_the_table() -> None:
    assert RULES_FILE.read_text() == rules_file(), (
        "out of date: kvpager metrics rules > deploy/prometheus/kvpager.rules.yml"
    )


def test_the_shipped_tests_are_the_courses() -> None:
    remedy = "out of date: python -m tests.metrics.promtool_file > deploy/prometheus/kvpager.rules.test.yml"
    assert TESTS_FILE.read_text() == promtool_file(), remedy


def test_the_file_is_yaml_with_every_rule() -> None:
    (group,) = yaml.safe_load(rules_file())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule.name for rule in RULES]
    assert [rule["expr"] for rule in group["rules"]] == [expression(rule) for rule in RULES]


def test_every_rule_has_a_course_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    for rule in RULES:
        courses = [course for course in COURSES if course.rule == rule.name]
        assert any(any(course.expected.values()) for course in courses), rule.name
        assert any(not any(course.expected.values()) for course in courses), rule.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_look_at_metrics_and_labels_that_there_are(rule: object) -> None:
    found = re.findall(r"(kvpager_\w+)(?:\{([^}]*)\})?", expression(rule))  # type: ignore[arg-type]
    assert found
    for name, selector in found:
        assert set(re.findall(r"(\w+)=", selector)) <= set(BY_NAME[name].labels)


@promtool
def test_promtool_accepts_the_rules() -> None:
    done = _promtool("check", "rules", RULES_FILE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@promtool
def test_the_rules_fire_where_they_should_and_nowhere_else() -> None:
    done = _promtool("test", "rules", TESTS_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_would_find_a_rule_that_does_not_fire(tmp_path: Path) -> None:
    head, first, *_ = TESTS_FILE.read_text().split("  - name: ")
    (tmp_path / TESTS_FILE.name).write_text(f"{head}  - name: {first}")
    (tmp_path / RULES_FILE.name).write_text(rules_file().replace("> 0.95", "> 0.99"))
    assert _promtool("test", "rules", tmp_path / TESTS_FILE.name).returncode == 1
