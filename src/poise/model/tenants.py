"""Access control: a token is bound to a tenant and a role.

A *tenant* owns jobs and may have a quota. A *bearer* is the holder of a token: it sees the work of its tenant, or of
every tenant as an observer and from the role operator on, and may do what its role allows. The token in the home
belongs to the home's owner: tenant `default`, role admin. Of all other tokens the ledger stores only a hash.
"""

import re
from enum import IntEnum

import msgspec

from poise.errors import SpecError

DEFAULT = "default"
"""The tenant of the home's own token, and of all jobs from before there were tenants."""


class Role(IntEnum):
    """Permissions of a bearer; each role from viewer on includes those below it.

    A viewer reads the work of its tenant, a submitter submits and cancels it. An operator reads and cancels the work of
    all tenants and drains nodes; an admin creates tokens and sets quotas, reads the audit, and stops the control plane.
    A node role is separate: it belongs to a machine that offers its resources, and allows nothing else. An observer
    reads what a viewer of every tenant may read, and changes nothing; its number is below the others', so that a
    comparison allows it nothing.
    """

    OBSERVER = -2
    NODE = -1
    VIEWER = 0
    SUBMITTER = 1
    OPERATOR = 2
    ADMIN = 3


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token in the ledger: `hash` is the SHA-256 of the secret, in hexadecimal digits. `expires` and `revoked` are
    instants, 0: never. Commands submitted with it run as the Unix `account`; empty: as the user of the node's agent.
    The token of a person who signed in has a `subject`: the issuer, and its id of the person.
    """

    id: str
    tenant: str
    role: Role
    hash: str
    name: str = ""
    expires: int = 0
    revoked: int = 0
    account: str = ""
    subject: str = ""

    @property
    def known_as(self) -> tuple[str, str]:
        """Tenant and name of the recipient."""
        return self.tenant, self.name


RULE = "rule:"
"""The beginning of the tokens with which rules act."""


class Bearer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The caller. `token` is the id of its token, empty for the home's own. Its commands run as the Unix `account`, or
    as the user of the node's agent (empty). A caller who has signed in is a `person`; all of the caller's work belongs
    to that user.
    """

    tenant: str = DEFAULT
    role: Role = Role.ADMIN
    token: str = ""
    name: str = ""
    account: str = ""
    person: str = ""

    @property
    def sees_all(self) -> bool:
        return self.role >= Role.OPERATOR or self.role is Role.OBSERVER

    def may(self, needed: Role) -> bool:
        """Whether the role is sufficient; an admin may also do what a node may."""
        if self.role is Role.OBSERVER:
            return needed is Role.VIEWER
        return self.role in (needed, Role.ADMIN) if needed is Role.NODE else self.role >= needed

    def sees(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant

    def may_enter(self, account: str) -> bool:
        """Whether it may run code beside work of this account, or read its files: only its own, except for an admin."""
        return account == self.account or self.role >= Role.ADMIN


HOME = Bearer()
"""The bearer of the home's own token."""


_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,31}")


def check_account(name: str, field: str) -> None:
    """Check the name of a Unix account. Raises `SpecError` for root, and for a name that no account can have."""
    if not _ACCOUNT.fullmatch(name) or name == "root":
        what = "this is not the name of a Unix account of a person"
        raise SpecError(what, code="E107", field=field, have=ascii(name[:80]), hint="`getent passwd` lists accounts")


def class_of_tenant(kind: str, tenant: str) -> str:
    """Return the name of a tenant's class of work, so that learned data stay within the tenant.

    >>> class_of_tenant("train", "default"), class_of_tenant("train", "ann"), class_of_tenant("a:b", "default")
    ('train', 'ann:train', 'default:a:b')
    """
    return kind if tenant == DEFAULT and ":" not in kind else f"{tenant}:{kind}"


def declared_class(kind: str) -> str:
    """Return the class as it was written, which is its name in a fleet's table of throughputs.

    >>> declared_class("train"), declared_class("ann:train"), declared_class("default:a:b")
    ('train', 'train', 'a:b')
    """
    _, colon, written = kind.partition(":")
    return written if colon else kind


def tenant_of_class(name: str) -> str:
    """Return the tenant of a class name.

    >>> [tenant_of_class(name) for name in ("train", "ann:train", "default:a:b")]
    ['default', 'ann', 'default']
    """
    tenant, colon, _ = name.partition(":")
    return tenant if colon else DEFAULT


def tenant_of_queue(queue: str) -> str:
    """Return the tenant of the units in a queue, by the name of the queue."""
    tenant, colon, _ = queue.partition("/")[0].partition(":")
    return tenant if colon else DEFAULT
