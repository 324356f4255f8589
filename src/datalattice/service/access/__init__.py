"""Access: authenticates callers and decides what they may do, from plain data and a time."""

from datalattice.service.access.audit import (
    RING_RECORDS as RING_RECORDS,
    Audit as Audit,
    audit_line as audit_line,
    is_audited as is_audited,
)
from datalattice.service.access.authenticating import (
    Authenticator as Authenticator,
    Credentials as Credentials,
    check_body as check_body,
)
from datalattice.service.access.control import (
    AccessControl as AccessControl,
)
from datalattice.service.access.limits import (
    ALLOWANCES as ALLOWANCES,
    Allowance as Allowance,
    RateLimits as RateLimits,
    Use as Use,
)
from datalattice.service.access.policies import (
    NO_VERSION as NO_VERSION,
    POLICY_FILE as POLICY_FILE,
    Policies as Policies,
    StoredRule as StoredRule,
)
from datalattice.service.access.policy import (
    ANYBODY as ANYBODY,
    AUTHENTICATED as AUTHENTICATED,
    OTHER_VENUES as OTHER_VENUES,
    PUBLIC as PUBLIC,
    AccessDecision as AccessDecision,
    Policy as Policy,
    PolicyRule as PolicyRule,
    checked_rule as checked_rule,
    could_allow as could_allow,
    decide as decide,
)
from datalattice.service.access.principal import (
    ANONYMOUS as ANONYMOUS,
    BAD_CREDENTIAL as BAD_CREDENTIAL,
    BadCredential as BadCredential,
    How as How,
    Origin as Origin,
    Principal as Principal,
)
from datalattice.service.access.scopes import (
    RIGHTS as RIGHTS,
    Delegated as Delegated,
    Grant as Grant,
    join_scope as join_scope,
    owned_part as owned_part,
    parse_grant as parse_grant,
    parse_grants as parse_grants,
    split_scope as split_scope,
)
from datalattice.service.access.spent import (
    SPENT_MAX as SPENT_MAX,
    SPENT_TABLE as SPENT_TABLE,
    SpentIds as SpentIds,
)
