"""Access: who asks, and what is allowed; doors hand it plain data and a time."""

from datalattice.service.access.audit import RING_RECORDS, Audit, AuditRecord, is_audited
from datalattice.service.access.authenticating import Authenticator, Credentials, check_body
from datalattice.service.access.control import AccessControl, MadeToken
from datalattice.service.access.limits import ALLOWANCES, Allowance, RateLimits, Use
from datalattice.service.access.policies import ABSENT, POLICY_FILE, Policies, StoredRule
from datalattice.service.access.policy import (
    ANYBODY,
    AUTHENTICATED,
    PUBLIC,
    AccessDecision,
    Policy,
    Rule,
    checked_rule,
    could_allow,
    decide,
)
from datalattice.service.access.principal import (
    ANONYMOUS,
    BAD_CREDENTIAL,
    LOCAL,
    BadCredential,
    How,
    Origin,
    Principal,
)
from datalattice.service.access.scopes import (
    RIGHTS,
    Delegated,
    Grant,
    join_scope,
    owned_part,
    parse_grant,
    parse_grants,
    split_scope,
)
from datalattice.service.access.spent import SPENT_MAX, SPENT_TABLE, SpentIds

__all__ = [
    "ABSENT",
    "ALLOWANCES",
    "ANONYMOUS",
    "ANYBODY",
    "AUTHENTICATED",
    "BAD_CREDENTIAL",
    "LOCAL",
    "POLICY_FILE",
    "PUBLIC",
    "RIGHTS",
    "RING_RECORDS",
    "SPENT_MAX",
    "SPENT_TABLE",
    "AccessControl",
    "AccessDecision",
    "Allowance",
    "Audit",
    "AuditRecord",
    "Authenticator",
    "BadCredential",
    "Credentials",
    "Delegated",
    "Grant",
    "How",
    "MadeToken",
    "Origin",
    "Policies",
    "Policy",
    "Principal",
    "RateLimits",
    "Rule",
    "SpentIds",
    "StoredRule",
    "Use",
    "check_body",
    "checked_rule",
    "could_allow",
    "decide",
    "is_audited",
    "join_scope",
    "owned_part",
    "parse_grant",
    "parse_grants",
    "split_scope",
]
