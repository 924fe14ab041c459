"""Who a request comes from, as the guard found out. Everything after the guard asks here and reads no header."""

from dataclasses import dataclass

from fastapi import Request

from kvpager.prefix.hashing import Scope, digest_fields
from kvpager.server.errors import ApiError

HIGHEST_PRIORITY = 0  # that a tenant may give a request of its own: the usual one


@dataclass(frozen=True, slots=True)
class Tenant:
    """``name``: of its API key; "" where no keys are in use. ``salt``: keeps its pages apart from those of others.
    ``is_operator``: may see what concerns all tenants."""

    name: str = ""
    salt: str = ""
    is_operator: bool = True


def named_tenant(name: str, *, is_operator: bool) -> Tenant:
    """The tenant of a key. Its salt is made of the name, so that it finds its pages again with another key."""
    return Tenant(name, digest_fields([b"kvpager.tenant", name.encode()]).hex(), is_operator)


def tenant_of(request: Request) -> Tenant:
    """REQUIRES: the guard has let the request through."""
    tenant: Tenant = request.state.tenant
    return tenant


def scope_for(tenant: Tenant, cache_salt: str | None = None) -> Scope:
    """Where the pages of a request are shared: within its tenant, and there among those of equal ``cache_salt``.

    The tenant pays for them, whatever the salt. No salt that a client may choose gives the scope of another tenant.
    """
    if not cache_salt:
        return Scope(tenant.salt, tenant=tenant.name)
    salt = digest_fields([b"kvpager.cache_salt", tenant.salt.encode(), cache_salt.encode("utf-8", "surrogatepass")])
    return Scope(salt.hex(), tenant=tenant.name)


def require_operator(request: Request) -> Tenant:
    """For routes that concern all tenants. Raises ApiError 403."""
    tenant = tenant_of(request)
    if not tenant.is_operator:
        raise ApiError(403, "this needs the key of an operator", code="operator_only")
    return tenant


def check_priority(tenant: Tenant, priority: int, highest: int = HIGHEST_PRIORITY) -> None:
    """A tenant may step back behind others, but only an operator may go before them. Raises ApiError 403."""
    if priority > highest and not tenant.is_operator:
        raise ApiError(
            403, f"a priority above {highest} needs the key of an operator", param="priority", code="operator_only"
        )
