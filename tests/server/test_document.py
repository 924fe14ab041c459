"""The OpenAPI document says who needs a key."""

from kvpager.config.server_options import ServerOptions
from kvpager.server.app import create_app
from kvpager.server.guard import LIVENESS


def test_all_but_liveness_asks_for_a_key() -> None:
    def no_engine() -> object:
        raise AssertionError

    document = create_app(no_engine, ServerOptions()).openapi()  # type: ignore[arg-type]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    asked = {path: each["security"] for path, ways in document["paths"].items() for each in ways.values()}
    assert {path for path, schemes in asked.items() if not schemes} == LIVENESS
    assert len(asked) > 15
