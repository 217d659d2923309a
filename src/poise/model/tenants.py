"""Who may do what: a token is bound to a tenant and a role.

A *tenant* owns jobs and may have a quota. A *bearer* is whoever came with a token: it sees what is of its tenant, or of
every tenant as an observer and from the role operator on, and may do what its role allows. The token that lies in the
home is that of the home's owner: tenant `default`, role admin. Of all others the ledger knows a hash only.
"""

from enum import IntEnum

import msgspec

DEFAULT = "default"
"""The tenant of the home's own token, and of all jobs that are older than tenants."""


class Role(IntEnum):
    """What a bearer may do; each role from viewer on may do what those below it may.

    A viewer reads what is of its tenant, a submitter submits and cancels it. An operator reads and cancels the work of
    all tenants and drains nodes; an admin gives tokens and quotas, reads the audit, and stops the control plane. A node
    is none of them: it speaks for a machine that offers itself, and may do nothing else. An observer reads what a
    viewer of every tenant would, and changes nothing; its number is below the others', so that a comparison allows it
    nothing.
    """

    OBSERVER = -2
    NODE = -1
    VIEWER = 0
    SUBMITTER = 1
    OPERATOR = 2
    ADMIN = 3


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as the ledger knows it: `hash` is the SHA-256 of the secret, in hexadecimal digits. `expires` and
    `revoked` are instants, 0: never.
    """

    id: str
    tenant: str
    role: Role
    hash: str
    name: str = ""
    expires: int = 0
    revoked: int = 0

    @property
    def known_as(self) -> tuple[str, str]:
        """Who it was given to."""
        return self.tenant, self.name


class Bearer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asks. `token` is the id of its token, empty for that of the home."""

    tenant: str = DEFAULT
    role: Role = Role.ADMIN
    token: str = ""
    name: str = ""

    @property
    def sees_all(self) -> bool:
        return self.role >= Role.OPERATOR or self.role is Role.OBSERVER

    def may(self, needed: Role) -> bool:
        """Whether the role is enough; of what is for nodes, that an admin is too."""
        if self.role is Role.OBSERVER:
            return needed is Role.VIEWER
        return self.role in (needed, Role.ADMIN) if needed is Role.NODE else self.role >= needed

    def sees(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant


HOME = Bearer()
"""The bearer of the home's own token."""


def class_of_tenant(kind: str, tenant: str) -> str:
    """The name under which a class of a tenant's work is known: what is learned of it stays within the tenant.

    >>> class_of_tenant("train", "default"), class_of_tenant("train", "ann"), class_of_tenant("a:b", "default")
    ('train', 'ann:train', 'default:a:b')
    """
    return kind if tenant == DEFAULT and ":" not in kind else f"{tenant}:{kind}"


def declared_class(kind: str) -> str:
    """The class as it was written, which is how a fleet's table of throughputs knows it.

    >>> declared_class("train"), declared_class("ann:train"), declared_class("default:a:b")
    ('train', 'train', 'a:b')
    """
    _, colon, written = kind.partition(":")
    return written if colon else kind


def tenant_of_class(name: str) -> str:
    """The tenant of whose work this is the name of a class.

    >>> [tenant_of_class(name) for name in ("train", "ann:train", "default:a:b")]
    ['default', 'ann', 'default']
    """
    tenant, colon, _ = name.partition(":")
    return tenant if colon else DEFAULT
