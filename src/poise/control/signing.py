"""Sign-in with accounts of an issuer: the routes, which need no token, and the settings of the home.

The control plane is the client of the issuer, so the client secret stays here. It keeps nothing between two requests:
device codes, PKCE verifiers and refresh tokens stay with the command line or the dashboard, which also creates the
secret of Poise's own token. The issuer is needed only to sign in and to renew; a token is valid until it expires.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from poise.config import Home
from poise.control.gatekeeper import Gatekeeper
from poise.control.guard import SIGN_IN, SIGN_IN_DEVICE, SIGN_IN_PAGE
from poise.control.plane import Plane
from poise.control.routes import Routes
from poise.errors import Busy, Denied, Fault, InputError, NotFound, PoiseError, SpecError, located
from poise.kernel import messages
from poise.model.reports.access import PageReport, SignInCode, SignInReport
from poise.model.sign_in import SignIn, compile_sign_in
from poise.model.tenants import Bearer, Role, Token
from poise.units import SECOND

if TYPE_CHECKING:  # its library is an extra
    from poise.drivers.oidc import Client, Granted, Issuer

AT_ONCE = 16
"""Maximum number of concurrent requests to the issuer."""

RATE, BURST = 20.0, 40.0
"""Sign-in requests per second that are sent to the issuer, sustained and in a burst. Anyone can send such requests."""

T = TypeVar("T")

Text = Annotated[str, msgspec.Meta(max_length=16 * 1024)]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Random = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43,128}$(?!\n)")]
"""A random text, as RFC 7636 wants a verifier and its challenge."""

_log = logging.getLogger("poise.control")


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start of a sign-in with a browser, which returns to `redirect`. `state` and `nonce` are random; `challenge`
    is the SHA-256 of a random verifier (PKCE), as base64url.
    """

    redirect: Text
    state: Random
    nonce: Random
    challenge: Random


class SignInRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exchange a proof of identity for a token, whose secret has the SHA-256 `hash` in hexadecimal. The proof is a
    `device_code`; or the `code` of a browser, with the values behind its `PageRequest`; or, to renew the token with
    this hash, a `refresh` token.
    """

    hash: Hash
    device_code: Text = ""
    code: Text = ""
    redirect: Text = ""
    verifier: Text = ""
    nonce: Text = ""
    refresh: Text = ""


class SignOutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a sign-in, with its `refresh` token, which is revoked at the issuer."""

    refresh: Text = ""


class SigningIn:
    """Signs people in. The settings are read again when their file changes."""

    def __init__(self, plane: Plane, home: Home, gate: Gatekeeper) -> None:
        self._plane, self._path, self._gate = plane, home.sign_in, gate
        self._read: tuple[tuple[int, int], SignIn | None] | None = None
        self._issuer: Issuer | None = None
        self._room = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, "sign-in")
        self._until = 0.0

    def add_routes(self, routes: Routes) -> None:
        @routes.post(SIGN_IN_DEVICE, summary="Start a sign-in with a code to enter in a browser", status=201)
        async def start_device() -> SignInCode:
            return await self._audited(SIGN_IN_DEVICE, self._device)

        @routes.post(SIGN_IN_PAGE, summary="Get the page of the issuer where a browser signs in", status=201)
        async def start_page(data: PageRequest) -> PageReport:
            return await self._audited(SIGN_IN_PAGE, lambda: self._page(data))

        @routes.post(SIGN_IN, summary="Exchange a proof of identity for a token, or renew a token", status=201)
        async def sign_in(data: SignInRequest) -> SignInReport:
            return await self._audited(SIGN_IN, lambda: self._sign_in(data))

        @routes.post("/v1/sign-out", summary="Revoke the token of this request", status=202, role=Role.VIEWER)
        async def sign_out(bearer: Bearer, data: SignOutRequest) -> dict[str, str]:
            return await self._sign_out(bearer, data)

    async def _device(self) -> SignInCode:
        settings, issuer, client = self._settings()
        begun = await self._asked(lambda: issuer.device(client, settings.scopes))
        return SignInCode(
            device_code=begun.device_code,
            user_code=begun.user_code,
            url=begun.verification_uri,
            whole_url=begun.verification_uri_complete,
            interval=begun.interval,
            expires_in=begun.expires_in,
        )

    async def _page(self, data: PageRequest) -> PageReport:
        settings, issuer, client = self._settings()
        asked = {"redirect_uri": data.redirect, "state": data.state, "nonce": data.nonce}
        asked |= {"code_challenge": data.challenge, "code_challenge_method": "S256"}
        return PageReport(await self._asked(lambda: issuer.page(client, settings.scopes, asked)))

    async def _sign_in(self, data: SignInRequest) -> SignInReport:
        from poise.drivers.oidc import Pending

        settings, issuer, client = self._settings()
        form, nonce = _proof(data)
        self._plane.check_leading()
        try:
            granted, claims = await self._asked(lambda: _proved(issuer, client, form, nonce))
        except Pending as pending:
            return SignInReport(pending=True, slower=pending.slower)
        who = settings.identity(claims)
        token: Token = await self._plane.request(
            lambda request: messages.SignedIn(
                request=request,
                hash=data.hash,
                subject=who.subject,
                name=who.name,
                tenant=who.tenant,
                role=who.role,
                account=who.account,
                lasts=settings.lasts,
                renews=bool(data.refresh),
            )
        )
        return SignInReport(
            token=token.id,
            name=token.name,
            tenant=token.tenant,
            role=token.role.name.lower(),
            account=token.account,
            lasts=settings.lasts / SECOND,
            refresh=granted.refresh_token or data.refresh,
        )

    async def _sign_out(self, bearer: Bearer, data: SignOutRequest) -> dict[str, str]:
        if not bearer.token:
            hint = "`rm token` in the home, then `poise up`, makes another one"
            raise InputError("a sign-out does not revoke the token of the home", field="Authorization", hint=hint)
        ended: str = await self._plane.request(lambda request: messages.RevokeToken(request, bearer.token, bearer))
        if data.refresh:
            with contextlib.suppress(PoiseError):  # Poise's own token has ended, with or without the issuer
                _, issuer, client = self._settings()
                await self._asked(lambda: issuer.revoke(client, data.refresh))
        return {"token": ended}

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _audited(self, path: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Await an answer; count a refusal, and log it. Errors contain no secret."""
        try:
            return await ask()
        except PoiseError as error:
            self._gate.refused(error, path)
            _log.warning("sign-in: %s: %s %s", error.record.code, error, error.record.have)
            raise

    async def _asked(self, ask: Callable[[], T]) -> T:
        """Ask the issuer, which may be slow, on a thread of sign-ins: other work needs the others. Raises `Busy`."""
        now = asyncio.get_running_loop().time()
        if self._room.locked() or self._until - now > BURST / RATE:
            raise Busy("too many people sign in", need=f"at most {AT_ONCE} at once", hint="`poise login`")
        self._until = max(self._until, now) + 1 / RATE
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _settings(self) -> "tuple[SignIn, Issuer, Client]":
        """Return the settings of the home, the issuer, and Poise as its client. Raises `NotFound` without settings, and
        `Fault` for an invalid file or secret.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            what, hint = "nobody can sign in here", "ask an admin for a token: `poise token add`"
            raise NotFound(what, field="sign-in.yaml", hint=hint) from None
        from poise.drivers.oidc import Client, Issuer
        from poise.drivers.yamlfile import load_yaml, place_in_file

        state, read = (found.st_mtime_ns, found.st_size), self._read
        if read is None or read[0] != state:
            try:
                with located(place_in_file(self._path)):
                    settings = compile_sign_in(load_yaml(self._path))
            except SpecError as error:
                settings = None
                for one in error.record.all():
                    _log.error("%s: %s: %s %s", one.at or self._path, one.field, one.message, one.have)
            self._read = read = (state, settings)  # strangers ask: an invalid file is read once, too
        settings = read[1]
        if settings is None:
            raise _invalid()
        if self._issuer is None or self._issuer.url != settings.issuer:
            self._issuer = Issuer(settings.issuer)
        try:
            secret = _secret(self._path.parent, settings)
        except PoiseError as error:
            _log.error("%s: %s %s", error.record.field, error, error.record.need)
            raise _invalid() from None
        return settings, self._issuer, Client(settings.client, secret)


def _invalid() -> Fault:
    """Return the error for strangers, to whom the settings are not told."""
    hint = "ask the admin; the log of the control plane has the reason"
    return Fault("the sign-in settings are invalid", field="sign-in.yaml", hint=hint)


def _proof(data: SignInRequest) -> tuple[Mapping[str, str], str]:
    """Return the form of a request to the token endpoint, and the nonce that the ID token must have."""
    from poise.drivers.oidc import DEVICE_CODE

    if (bool(data.device_code), bool(data.code), bool(data.refresh)).count(True) != 1:
        need = "one of `device_code`, `code` and `refresh`"
        raise InputError("the request has no proof of identity, or several", need=need, hint="`poise login`")
    if data.device_code:
        return {"grant_type": DEVICE_CODE, "device_code": data.device_code}, ""
    if data.refresh:
        return {"grant_type": "refresh_token", "refresh_token": data.refresh}, ""
    if not (data.nonce and data.verifier and data.redirect):
        raise InputError("a code needs `nonce`, `verifier` and `redirect`", field="code", hint="`poise login`")
    form = {"grant_type": "authorization_code", "code": data.code}
    return form | {"redirect_uri": data.redirect, "code_verifier": data.verifier}, data.nonce


def _proved(
    issuer: "Issuer", client: "Client", form: Mapping[str, str], nonce: str
) -> "tuple[Granted, dict[str, object]]":
    """Exchange a proof for the checked claims of an ID token. Blocks. Raises `Pending`."""
    granted = issuer.redeem(client, form)
    if not granted.id_token:
        hint = "allow the scope `openid` for the client at the issuer"
        raise Denied("the issuer sent no ID token", code="E135", field="id_token", hint=hint)
    return granted, issuer.claims(granted.id_token, client, nonce)


def _secret(home: Path, settings: SignIn) -> str:
    """Return the secret of the client; empty if it is public. Raises `PoiseError`, without its value."""
    if not settings.secret_file:
        return ""
    from poise.drivers.security import read_secret

    return read_secret(home / settings.secret_file)


__all__ = ["SigningIn"]
