"""Bodies, headers and queries made from the OpenAPI document, right and wrong ones, against a live server.

schemathesis makes them; its checks say what an answer may be. By hand: ``FUZZ_EXAMPLES=3000 pytest -m heavy FILE``.
"""

import copy
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CheckFunction, load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from kvpager.config.server_options import ServerOptions
from kvpager.config.tiers import DiskTier
from tests.server.openai.settled import assert_settled
from tests.server.serving import Serving, serving

KEY = "sk-fuzz-0123456789abcdef"
EXAMPLES = 5  # of each operation and mode
MANY = int(os.environ.get("FUZZ_EXAMPLES", "2000"))
ENDLESS = {"/v1/kv/stream"}  # an answer without an end can't be looked at whole

load_all_checks()
_CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("fuzzed")
    keys = folder / "keys"
    keys.write_text(f"ops {KEY} operator\n")
    keys.chmod(0o600)
    options = ServerOptions(port=0, api_keys=keys, allow_reset=True)
    with serving(model, server=options, tiers=(DiskTier(folder / "disk", "16MiB"),)) as opened:
        yield opened


def operations(server: Serving) -> list[schemathesis.APIOperation]:
    document = copy.deepcopy(server.app.openapi())
    for paths in document["paths"].values():
        for each in paths.values():
            del each["security"]  # every request has the key; tests/cases/test_O26.py is about those without
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    schema.config.generation.update(allow_extra_parameters=False)  # unknown ones of a query are ignored
    return [each.ok() for each in schema.get_all_operations() if each.ok().path not in ENDLESS]


def fuzz(server: Serving, examples: int) -> int:
    """How many requests were sent. Raises all that was wrong, one error for each operation."""
    sent = 0
    wrong: list[BaseException] = []
    bearer = {"Authorization": f"Bearer {KEY}"}
    for operation in operations(server):
        for mode in schemathesis.GenerationMode:

            @seed(zlib.crc32(f"{operation.label} {mode}".encode()))
            @settings(
                max_examples=examples,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case: schemathesis.Case) -> None:
                nonlocal sent
                sent += 1
                if isinstance(case.body, dict) and case.path.endswith("completions"):
                    shorten(case.body)
                case.call_and_validate(headers=bearer, checks=_CHECKS, timeout=60)

            try:
                one()
            except Unsatisfiable:
                pass  # nothing can be wrong in a request without input
            except (Exception, FailureGroup) as error:
                wrong.append(error)
    if wrong:
        raise BaseExceptionGroup("answers are not as the document says", wrong)
    return sent


def shorten(body: dict[str, object]) -> None:
    """A legal answer of hundreds of tokens shows nothing that one of four does not."""
    body.setdefault("max_tokens", 4)
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name, 0)
        if value is None or (isinstance(value, int) and value > 4):
            body[name] = 4


def check_alive(server: Serving) -> None:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        assert client.get("/ready").status_code == 200
        answer = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})
        assert answer.status_code == 200
    assert_settled(server)


@pytest.mark.slow
def test_answers_are_as_the_document_says(server: Serving, tmp_path: Path) -> None:
    assert fuzz(server, EXAMPLES) > 100
    check_alive(server)


@pytest.mark.heavy
@pytest.mark.timeout(0)
def test_many_answers_are_as_the_document_says(server: Serving) -> None:
    assert fuzz(server, MANY) > MANY
    check_alive(server)
