"""Access: who asks, and what is allowed; doors hand it plain data and a time."""

from datalattice.service.access.policy import (
    AUTHENTICATED,
    PUBLIC,
    AccessDecision,
    Policy,
    Rule,
    checked_rule,
    decide,
)
from datalattice.service.access.principal import (
    ANONYMOUS,
    BAD_CREDENTIAL,
    BadCredential,
    How,
    Principal,
)
from datalattice.service.access.scopes import (
    RIGHTS,
    Grant,
    join_scope,
    parse_grant,
    parse_grants,
    split_scope,
)

__all__ = [
    "ANONYMOUS",
    "AUTHENTICATED",
    "BAD_CREDENTIAL",
    "PUBLIC",
    "RIGHTS",
    "AccessDecision",
    "BadCredential",
    "Grant",
    "How",
    "Policy",
    "Principal",
    "Rule",
    "checked_rule",
    "decide",
    "join_scope",
    "parse_grant",
    "parse_grants",
    "split_scope",
]
