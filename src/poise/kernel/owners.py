"""Work that runs as the Unix account of the token that submitted it.

The account is a requirement of each task for its node (`Where.account`): only nodes that offer it are eligible, and the
node runs the command as it. No change of a submitted job reaches it.
"""

import msgspec

from poise.errors import Forbidden
from poise.kernel.ledger import Ledger
from poise.model.jobs import Array, Unit
from poise.model.resources import ROOTLESS, Shape
from poise.model.spec import Compiled
from poise.model.tenants import Bearer, Role


def owned(ledger: Ledger, compiled: Compiled, bearer: Bearer) -> Compiled:
    """Return the job as it runs for this bearer. Raises `Forbidden` as `_check_bound`."""
    _check_bound(ledger, bearer)
    if not bearer.account:
        return compiled
    units = tuple(_unit(unit, bearer.account) for unit in compiled.units)
    array = None if compiled.array is None else _array(compiled.array, bearer.account)
    return compiled._replace(units=units, array=array)


def check_enter(ledger: Ledger, account: str, bearer: Bearer) -> None:
    """Raise `Forbidden` unless the bearer may run code as this account (empty: as the user of the agent): run its work
    again, run commands beside it, call its functions, and read its files.
    """
    _check_bound(ledger, bearer)
    if not bearer.may_enter(account):
        raise Forbidden(
            "the work runs as another user",
            field="Authorization",
            need=f"a token with the account {account}" if account else "a token without an account",
            have=bearer.account or "none",
            hint="`poise whoami` shows the account of yours",
        )


def _check_bound(ledger: Ledger, bearer: Bearer) -> None:
    """Raise `Forbidden` for a token without an account, except an admin's, if a token of the home has ever named one:
    its commands would run as the user of the agent.
    """
    if not bearer.account and bearer.role in (Role.SUBMITTER, Role.OPERATOR) and ledger.tokens.name_accounts():
        raise Forbidden(
            "the token names no account, and this home runs commands as accounts",
            field="Authorization",
            need="an account to run its commands",
            have=bearer.token,
            hint=f"ask an admin: `poise token add --tenant {bearer.tenant} --role submitter --account NAME`",
        )


def _unit(unit: Unit, account: str) -> Unit:
    def owned_shape(shape: Shape) -> Shape:
        """Return the shape for nodes that offer the account and, for a container, also run containers of accounts.
        Accounts cannot use the images of the node.
        """
        labels = dict(shape.where.labels) | ({ROOTLESS: ("yes",)} if unit.image else {})
        where = msgspec.structs.replace(shape.where, account=account, labels=tuple(sorted(labels.items())), image="")
        return msgspec.structs.replace(shape, where=where)

    variants = tuple(msgspec.structs.replace(one, shape=owned_shape(one.shape)) for one in unit.variants)
    return msgspec.structs.replace(unit, shape=owned_shape(unit.shape), variants=variants)


def _array(array: Array, account: str) -> Array:
    merge = None if array.merge is None else _unit(array.merge, account)
    return msgspec.structs.replace(array, like=_unit(array.like, account), merge=merge)
