"""A server with keys for two tenants and an operator, a host and a disk tier, and clients that speak for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.config.tiers import DiskTier, HostTier
from tests.server.serving import Serving, serving

KEYS = {"team-a": "sk-team-a-0123456789", "team-b": "sk-team-b-0123456789", "ops": "sk-ops-0123456789abc"}
As = Callable[[str], httpx.Client]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    lines = [f"{name} {key}{' operator' if name == 'ops' else ''}" for name, key in KEYS.items()]
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def shared(model: str, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """With tenants, tiers and resets."""
    folder = tmp_path_factory.mktemp("tiers") / "disk"
    options = ServerOptions(port=0, api_keys=keys, allow_reset=True)
    tiers = (HostTier("4MiB"), DiskTier(folder, "16MiB"))
    with serving(model, num_blocks=64, server=options, tiers=tiers, write_back="through") as opened:
        yield opened


@pytest.fixture(scope="module")
def speak_for(shared: Serving) -> Iterator[As]:
    """``speak_for("team-a")`` is a client with that tenant's key."""
    opened = {
        name: httpx.Client(base_url=shared.url, timeout=60, headers={"Authorization": f"Bearer {key}"})
        for name, key in KEYS.items()
    }
    yield opened.__getitem__
    for client in opened.values():
        client.close()
