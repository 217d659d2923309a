"""Sign-in with accounts of an issuer (OpenID Connect): the settings, and the rules from groups to tenants.

`SignInSpec` is the file `sign-in.yaml` in the home, which an operator writes:

    kind: sign-in
    issuer: https://login.example.com/realms/lab
    client: poise
    rules:
      - {group: ml-admins, tenant: default, role: admin}
      - {group: team-*, tenant: "*"}
      - {group: guests, tenant: guests, role: viewer}

The first rule that gives a group of the account a valid tenant name applies. An account without such a rule cannot sign
in.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from poise.errors import Forbidden, SpecError
from poise.model.document import Findings
from poise.model.fields import Quantity, parse_or_raise
from poise.model.spec import check_name
from poise.model.tenants import Role, check_account
from poise.units import DAY, HOUR, MINUTE, parse_duration

RoleName = Literal["viewer", "observer", "submitter", "operator", "admin"]

LASTS = 8 * HOUR
LEAST_LASTS, MOST_LASTS = 5 * MINUTE, DAY
"""Default and limits of the lifetime of a token."""

MAX_RULES = 1000
MAX_GROUP = 256
MAX_TEXT = 512
ANY = "*"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts whose issuer may be reached without TLS."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class SignInRuleSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Members of a group belong to a tenant, with a role."""

    group: str
    tenant: str
    role: RoleName = "submitter"


class SignInSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str
    issuer: str
    client: str
    rules: list[SignInRuleSpec]
    secret_file: str = ""
    scopes: list[str] = msgspec.field(default_factory=lambda: ["profile"])
    groups: str = "groups"
    name: str = "preferred_username"
    account: str = ""
    lasts: Quantity = "8h"


class SignInRule(NamedTuple):
    """A compiled rule. A `*` of `tenant` is the part of the group's name that `*` of `group` matches."""

    group: str
    tenant: str
    role: Role

    def tenant_of(self, group: str) -> str:
        """Return the tenant for a member of this group; empty if the rule does not apply to it."""
        before, star, after = self.group.partition(ANY)
        if not star:
            return self.tenant if group == self.group else ""
        part = group[len(before) : len(group) - len(after)]
        fits = len(group) > len(before) + len(after) and group.startswith(before) and group.endswith(after)
        return self.tenant.replace(ANY, part) if fits else ""


class Identity(NamedTuple):
    """An account that may sign in. `subject` identifies it for ever: the issuer, and its id of the account. `name` is
    never empty.
    """

    subject: str
    name: str
    tenant: str
    role: Role
    account: str = ""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled settings. `groups`, `name` and `account` are names of claims; tokens of Poise last `lasts`
    nanoseconds.
    """

    issuer: str
    client: str
    rules: tuple[SignInRule, ...]
    secret_file: str = ""
    scopes: tuple[str, ...] = ()
    groups: str = "groups"
    name: str = "preferred_username"
    account: str = ""
    lasts: int = LASTS

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """Return the identity of an account by the checked claims of its ID token. Raises `Forbidden` (E136)."""
        groups = claims.get(self.groups)
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise _no_rule(f"the issuer sent no groups (claim `{self.groups}`)", f"a list in the claim `{self.groups}`")
        wrong: SpecError | None = None
        for rule in self.rules:
            for group in groups:
                if len(group) > MAX_GROUP or not (tenant := rule.tenant_of(group)):
                    continue
                try:
                    check_name(tenant, "tenant")
                except SpecError as error:  # another group may give a valid name
                    wrong = wrong or error
                else:
                    return self._identity(claims, tenant, rule.role)
        if wrong is not None:
            raise _no_rule(str(wrong), "a group that gives a valid tenant name")
        raise _no_rule("no rule gives a group of this account a tenant", "a rule for one of its groups")

    def _identity(self, claims: Mapping[str, Any], tenant: str, role: Role) -> Identity:
        account = claims.get(self.account) if self.account else ""
        try:
            if self.account:
                check_account(account if isinstance(account, str) else "", self.account)
        except SpecError as error:
            raise _no_rule(str(error), f"another value of `{error.record.field}`") from None
        name = name_of(claims.get(self.name)) or name_of(claims["sub"])
        if not name:  # the work of a person always counts for that person
            raise _no_rule("the name of the account has no letter or digit", f"letters or digits in `{self.name}`")
        return Identity(f"{self.issuer} {claims['sub']}", name, tenant, role, str(account))


def name_of(claim: Any) -> str:
    """Return the display name of an account; characters that names cannot contain become hyphens.

    >>> name_of("ann.lee@example.com"), name_of(None)
    ('ann.lee-example.com', '')
    """
    return _NOT_IN_NAMES.sub("-", claim).strip("._-")[:63] if isinstance(claim, str) else ""


def compile_sign_in(document: Any) -> SignIn:
    """Compile a parsed file. Raises `SpecError` with every error."""
    found = Findings()
    spec = found.convert(document, SignInSpec)
    if spec is None:
        found.check(lambda field: "issuer: https://login.example.com")
        raise AssertionError("a document that cannot be converted has an error")
    if spec.kind != "sign-in":
        found.add(SpecError("this is not a sign-in file", field="kind", need="sign-in", have=spec.kind))
    found.get(None, check_url, spec.issuer, "issuer")
    for field, text in (("client", spec.client), ("groups", spec.groups), ("name", spec.name)):
        if not 0 < len(text) <= MAX_TEXT:
            found.add(SpecError("this text is empty or too long", field=field, need=f"1 to {MAX_TEXT} characters"))
    for place, scope in enumerate(spec.scopes):
        if not _SCOPE.fullmatch(scope):
            found.add(SpecError("this is not a valid scope", field=f"scopes[{place}]", have=ascii(scope[:80])))
    if not 0 < len(spec.rules) <= MAX_RULES:
        found.add(
            SpecError(
                "the number of rules is wrong", field="rules", need=f"1 to {MAX_RULES}", have=str(len(spec.rules))
            )
        )
    rules = tuple(_rule(rule, f"rules[{place}]", found) for place, rule in enumerate(spec.rules))
    lasts = found.get(LASTS, parse_or_raise, parse_duration, spec.lasts, "lasts", MOST_LASTS)
    if lasts < LEAST_LASTS:
        found.add(SpecError("tokens would expire too soon", code="E103", field="lasts", need="5m to 24h"))
    found.check(lambda field: "rules: [{group: team-vision, tenant: vision}]")
    return SignIn(
        issuer=spec.issuer,
        client=spec.client,
        rules=rules,
        secret_file=spec.secret_file,
        scopes=tuple(dict.fromkeys(("openid", *spec.scopes))),
        groups=spec.groups,
        name=spec.name,
        account=spec.account,
        lasts=lasts,
    )


def check_url(url: str, field: str) -> None:
    """Raise `SpecError` unless a secret may be sent to this URL: it uses TLS, or leads to this machine."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname or "", split.port
    except ValueError:
        host = ""
    secure = host and (split.scheme == "https" or (split.scheme == "http" and host in LOOPBACK))
    if not secure or split.username is not None or split.fragment or not url.isprintable() or len(url) > MAX_TEXT:
        need = "https://HOST/PATH, or http:// for this machine"
        raise SpecError("this is not the URL of an issuer", field=field, need=need, have=ascii(url[:80]))


def _rule(spec: SignInRuleSpec, field: str, found: Findings) -> SignInRule:
    stars = spec.group.count(ANY)
    if not 0 < len(spec.group) <= MAX_GROUP or stars > 1:
        need = f"at most {MAX_GROUP} characters, and at most one `*`"
        found.add(SpecError("this is not a group", field=f"{field}.group", need=need, have=ascii(spec.group[:80])))
    if ANY in spec.tenant and not stars:
        what, hint = "`*` has no value: the group has none", f"group: team-*, tenant: '{spec.tenant[:63]}'"
        found.add(SpecError(what, field=f"{field}.tenant", have=ascii(spec.tenant[:80]), hint=hint))
    found.get(None, check_name, spec.tenant.replace(ANY, "x", 1), f"{field}.tenant")
    return SignInRule(spec.group, spec.tenant, Role[spec.role.upper()])


def _no_rule(what: str, need: str) -> Forbidden:
    hint = "ask an admin for a rule in `sign-in.yaml`, or the issuer's admin for a group"
    return Forbidden(what, code="E136", field="rules", need=need, hint=hint)


__all__ = ["Identity", "SignIn", "SignInRule", "SignInSpec", "check_url", "compile_sign_in", "name_of"]
