"""Who a request comes from, as the guard found out. Everything after the guard asks here and reads no header."""

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class Tenant:
    """``name``: of its API key; "" where no keys are in use. ``salt``: keeps its pages apart from those of others.
    ``is_operator``: may see what concerns all tenants."""

    name: str = ""
    salt: str = ""
    is_operator: bool = True


def tenant_of(request: Request) -> Tenant:
    """REQUIRES: the guard has let the request through."""
    tenant: Tenant = request.state.tenant
    return tenant
