"""Reports of tokens, sign-ins, and who changed what."""

import msgspec


class WhoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the client: the tenant and role of its token, and the token's id and name (empty: the home's own
    token). `expires` and `account` are as in `TokenReport`. `accounts`: a token of this home has named an account.
    """

    tenant: str
    role: str
    token: str
    name: str
    expires: float
    account: str = ""
    accounts: bool = False


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A created token. Only its holder has the secret. `expires` and `revoked` are in seconds since 1970; 0: never. Its
    commands run as the Unix `account`, or as the user of the node's agent (empty).
    """

    id: str
    tenant: str
    role: str
    name: str
    expires: float
    expired: bool
    revoked: float
    account: str = ""


class SignInCode(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a sign-in: open `url` in any browser, and enter `user_code`; `whole_url`, if known, already contains
    the code. Ask for the result with `device_code` every `interval` seconds, for `expires_in` seconds.
    """

    device_code: str
    user_code: str
    url: str
    whole_url: str = ""
    interval: float
    expires_in: float


class PageReport(msgspec.Struct, frozen=True):
    """The page of the issuer where a browser signs in."""

    url: str


class SignInReport(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a person who has signed in. It lasts `lasts` seconds; `refresh`, if the issuer sent one, renews it.
    Or `pending`: the person has not entered the code yet; if `slower`, ask five seconds less often.
    """

    pending: bool = False
    slower: bool = False
    token: str = ""
    name: str = ""
    tenant: str = ""
    role: str = ""
    account: str = ""
    lasts: float = 0.0
    refresh: str = ""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """A requested change: its time, what was requested, and the id, name and tenant of the token (empty id: the token
    of the home).
    """

    revision: int
    at: float
    token: str
    name: str
    tenant: str
    what: str


class Refusal(msgspec.Struct, frozen=True):
    """A request that was refused before it was processed: its error code, and the token that it carried, if any."""

    at: float
    code: str
    path: str
    token: str
    tenant: str


class RefusalsReport(msgspec.Struct, frozen=True):
    """The number of requests refused since the control plane started, by error code, and the latest of them."""

    counts: dict[str, int]
    latest: tuple[Refusal, ...]
