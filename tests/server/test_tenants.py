"""Tenants are kept apart by salt, whatever salt they choose, and pay for their own pages."""

from itertools import combinations

import pytest

from kvpager.config import Options
from kvpager.config.quotas import TenantQuota
from kvpager.engine.engine import Engine
from kvpager.engine.sampling_params import Sampling
from kvpager.server.errors import ApiError
from kvpager.server.tenant import Tenant, check_priority, named_tenant, scope_for

A, B = named_tenant("team-a", is_operator=False), named_tenant("team-b", is_operator=False)


def test_every_tenant_and_salt_is_a_scope_of_its_own() -> None:
    nobody = Tenant()
    clever = ["", "team-a", A.salt, B.salt, scope_for(B).salt, scope_for(B, "x").salt, "team-b\0x", "\ud800"]
    scopes = {(who.name, salt): scope_for(who, salt) for who in (nobody, A, B) for salt in clever}
    for (one, first), (other, second) in combinations(scopes.items(), 2):
        assert first != second, (one, other)
    assert scope_for(named_tenant("team-a", is_operator=True), "x") == scope_for(A, "x")  # after a change of keys
    assert scope_for(A, None) == scope_for(A, "")
    assert scope_for(nobody).salt == ""  # without keys it is shared with what else uses the folder


def test_a_tenant_pays_for_all_its_salts(model: str) -> None:
    options = Options(model=model, page_size=4, quotas=(TenantQuota("team-a", "25%"),))
    with Engine(model, options=options, num_blocks=64) as engine:
        for salt in ("", "x", "y"):
            for who in (A, B):
                list(engine.generate([[1, 2, 3] * 8], Sampling(max_tokens=8), scope=scope_for(who, salt)))
        statistics = engine.cache.statistics().retention
    assert statistics is not None
    held = {name: max(usage.blocks.values()) for name, usage in statistics.tenants.items()}
    assert held == {"team-a": 16, "team-b": 21}


def test_only_operators_go_before_others() -> None:
    check_priority(A, 0)
    check_priority(A, -3)
    check_priority(Tenant(), 5)
    with pytest.raises(ApiError, match="operator") as refused:
        check_priority(A, 1)
    assert refused.value.status == 403
