"""An OpenID Connect issuer: its published documents, its answers, and the check of its ID tokens.

A token is accepted only with an RS256 or ES256 signature by a key that the issuer currently publishes. So the algorithm
`none`, or an HMAC with a public key as its secret, is refused. Keys and endpoints are read again after `KEEP_SECONDS`,
and for an unknown key at most every `AGAIN_SECONDS`. Redirects are not followed.

Methods block, and may be called on any thread. They raise `Fault` (E218) if the issuer does not answer, and `Denied`
(E135) if it refuses, or if a token is wrong. Errors never contain a token, a code or a secret.
"""

import base64
import binascii
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from poise import __version__
from poise.decoding import json_decoder
from poise.drivers.exchange import exchange
from poise.errors import Denied, Fault, InputError, SpecError, extra
from poise.model.sign_in import check_url

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256
except ImportError:
    raise InputError("sign-in needs the package `cryptography`", field="sign-in.yaml", hint=extra("oidc")) from None

SECONDS = 10.0
"""Time limit in seconds of one request to the issuer."""

MOST_BYTES, MOST_TOKEN = 2**20, 64 * 1024
"""Maximum sizes of an answer and of a token."""

KEEP_SECONDS, AGAIN_SECONDS = 3600.0, 30.0

SKEW_SECONDS = 60.0
"""Permitted difference between the clocks of the issuer and of this machine."""

LEAST_BITS = 2048
"""Minimum size of an RSA key."""

P256_BYTES = 32

WELL_KNOWN = "/.well-known/openid-configuration"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"

T = TypeVar("T")


class Published(msgspec.Struct, frozen=True):
    """The discovery document of an issuer; an empty endpoint means that the issuer has none."""

    issuer: str
    token_endpoint: str
    jwks_uri: str
    authorization_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Key(msgspec.Struct, frozen=True):
    """A public key, as a JSON Web Key. Numbers are base64url."""

    kty: str
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _Keys(msgspec.Struct, frozen=True):
    keys: tuple[msgspec.Raw, ...]


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str = ""
    crit: Any = None


class Device(msgspec.Struct, frozen=True):
    """The start of a sign-in by device code (RFC 8628): the person opens `verification_uri` and enters `user_code`.
    Ask for the result with `device_code`, every `interval` seconds, for `expires_in` seconds.
    """

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    interval: float = 5.0
    verification_uri_complete: str = ""


class Granted(msgspec.Struct, frozen=True):
    """A successful answer of the token endpoint."""

    id_token: str = ""
    refresh_token: str = ""


class _Refused(msgspec.Struct, frozen=True):
    error: str = ""


class Client(NamedTuple):
    """Poise as a client of the issuer; a public client has no secret."""

    id: str
    secret: str = ""


class Pending(Exception):
    """The person has not entered the code yet. `slower`: poll five seconds less often."""

    def __init__(self, *, slower: bool) -> None:
        super().__init__("authorization is pending")
        self.slower = slower


class Issuer:
    """The issuer at a URL. `now` is the wall clock, in seconds since 1970."""

    def __init__(self, url: str, now: Callable[[], float] = time.time) -> None:
        self.url, self._now = url, now
        self._reading = threading.Lock()
        self._failed: tuple[float, Fault] | None = None
        self._published: tuple[float, Published] | None = None
        self._keys: tuple[float, tuple[Key, ...]] | None = None

    def device(self, client: Client, scopes: Sequence[str]) -> Device:
        """Start a sign-in by device code."""
        endpoint = self.published().device_authorization_endpoint
        if not endpoint:
            raise self._cannot("sign-in by device code")
        return self._ask(Device, endpoint, {"scope": " ".join(scopes)}, client)

    def page(self, client: Client, scopes: Sequence[str], more: Mapping[str, str]) -> str:
        """Return the URL where a browser signs in."""
        endpoint = self.published().authorization_endpoint
        if not endpoint:
            raise self._cannot("sign-in by a browser")
        asked = {"response_type": "code", "client_id": client.id, "scope": " ".join(scopes), **more}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def redeem(self, client: Client, form: Mapping[str, str]) -> Granted:
        """Exchange a code or a refresh token. Raises `Pending`."""
        return self._ask(Granted, self.published().token_endpoint, form, client)

    def revoke(self, client: Client, refresh: str) -> None:
        """Revoke a refresh token, if the issuer supports that (RFC 7009)."""
        if endpoint := self.published().revocation_endpoint:
            self._ask(dict[str, Any], endpoint, {"token": refresh, "token_type_hint": "refresh_token"}, client)

    def claims(self, token: str, client: Client, nonce: str = "") -> dict[str, Any]:
        """Return the claims of an ID token, checked: signature, issuer, audience, times, and the `nonce` if given."""
        claims = self._signed(token)
        if claims.get("iss") != self.url:
            raise _wrong("it is from another issuer")
        audience, party = claims.get("aud"), claims.get("azp", client.id)
        audience = [audience] if isinstance(audience, str) else audience
        if not isinstance(audience, list) or client.id not in audience or party != client.id:
            raise _wrong("it is for another client")
        if len(audience) > 1 and "azp" not in claims:
            raise _wrong("it is for several clients, and does not name the authorized one")
        now, expires, issued = self._now(), _instant(claims, "exp"), _instant(claims, "iat")
        if expires <= now - SKEW_SECONDS:
            raise _wrong("it has expired")
        if max(issued, _instant(claims, "nbf", issued)) > now + SKEW_SECONDS:
            raise _wrong("it is not valid yet; compare the clocks of this machine and of the issuer")
        if nonce and not (isinstance(said := claims.get("nonce"), str) and secrets.compare_digest(_b(said), _b(nonce))):
            raise _wrong("it does not belong to this sign-in")
        if not (isinstance(subject := claims.get("sub"), str) and 0 < len(subject) <= 255 and subject.isprintable()):
            raise _wrong("it names no account")
        return claims

    def published(self) -> Published:
        """Return the discovery document."""
        with self._turn():
            if self._published is None or self._now() - self._published[0] > KEEP_SECONDS:
                told = self._ask(Published, self.url.rstrip("/") + WELL_KNOWN)
                if told.issuer != self.url:
                    raise Fault(
                        "the discovery document is from another issuer",
                        code="E218",
                        field="issuer",
                        need=self.url,
                        have=ascii(told.issuer[:200]),
                        hint="`issuer` in `sign-in.yaml`, with or without a `/` at its end",
                    )
                for endpoint in (
                    told.token_endpoint,
                    told.jwks_uri,
                    told.authorization_endpoint,
                    told.device_authorization_endpoint,
                    told.revocation_endpoint,
                ):
                    self._check_endpoint(endpoint)
                self._published = self._now(), told
            return self._published[1]

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Read alone what the issuer publishes. Whoever waits while another fails, fails with it: the next one would
        wait as long.
        """
        since = time.monotonic()
        with self._reading:
            if self._failed is not None and self._failed[0] >= since:
                raise self._failed[1]
            try:
                yield
            except Fault as fault:
                self._failed = time.monotonic(), fault
                raise

    def _signed(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is valid."""
        try:
            head, body, signature = token[: MOST_TOKEN + 1].split(".")
            header = json_decoder(_Header).decode(unpacked(head))
            claims = json_decoder(dict[str, Any]).decode(unpacked(body))
            signed = unpacked(signature)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            raise _wrong("it is not a signed token") from None
        verify = VERIFY.get(header.alg)
        if verify is None or header.crit is not None or len(token) > MOST_TOKEN:
            raise _wrong("it is not signed by RS256 or ES256")
        for age in (KEEP_SECONDS, AGAIN_SECONDS):  # a key without an id may be another one by now
            for key in self._keys_for(header, age):
                if verify(key, signed, f"{head}.{body}".encode()):
                    return claims
        raise _wrong("no key of the issuer has signed it")

    def _keys_for(self, header: _Header, age: float) -> list[Key]:
        """Return the keys that may have signed a token; read them again if that was more than `age` seconds ago."""
        uri = self.published().jwks_uri
        with self._turn():
            if self._keys is None or self._now() - self._keys[0] > age:
                self._keys = self._now(), tuple(_known(self._ask(_Keys, uri).keys))
            return [key for key in self._keys[1] if _may_sign(key, header)]

    def _ask(self, kind: type[T], url: str, form: Mapping[str, str] | None = None, client: Client | None = None) -> T:
        """Send a GET, or a form as a POST of the client. Return the decoded answer."""
        status, content = self._exchange(url, form, client)
        if 300 <= status < 400 or status >= 500:
            raise self._away(f"status {status}")
        try:
            if status < 300:
                return json_decoder(kind).decode(content or b"{}")
            refused = json_decoder(_Refused).decode(content)
        except (msgspec.MsgspecError, RecursionError):
            raise self._away(f"an unreadable answer with status {status}") from None
        if refused.error in ("authorization_pending", "slow_down"):
            raise Pending(slower=refused.error == "slow_down")
        what = "the issuer refused the sign-in"
        raise Denied(what, code="E135", field="issuer", have=ascii(refused.error[:80]), hint="`poise login`")

    def _exchange(self, url: str, form: Mapping[str, str] | None, client: Client | None) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "User-Agent": f"poise/{__version__}"}
        body = None
        if form is not None and client is not None:
            form = dict(form)
            methods = self.published().token_endpoint_auth_methods_supported
            if client.secret and "client_secret_basic" in methods:
                named = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(named.encode()).decode()}"
            else:
                form |= {"client_id": client.id} | ({"client_secret": client.secret} if client.secret else {})
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(form).encode()
        try:
            method = "GET" if body is None else "POST"
            status, _, content = exchange(method, url, headers, body, seconds=SECONDS, most=MOST_BYTES)
        except OSError as error:
            raise self._away(type(error).__name__) from None
        if len(content) > MOST_BYTES:
            raise self._away(f"more than {MOST_BYTES} bytes")
        return status, content

    def _check_endpoint(self, url: str) -> None:
        try:
            if url:
                check_url(url, "issuer")
        except SpecError:
            raise self._away(f"an endpoint that is not safe: {url[:200]!a}") from None

    def _away(self, have: str) -> Fault:
        hint = f"check whether {self.url}{WELL_KNOWN} can be read; existing tokens stay valid until they expire"
        return Fault("the sign-in issuer does not answer", code="E218", field=self.url, have=have, hint=hint)

    def _cannot(self, what: str) -> InputError:
        hint = "enable it for the client at the issuer, or ask an admin for a token: `poise token add`"
        return InputError(f"the issuer offers no {what}", code="E135", field=self.url, hint=hint)


def _known(keys: Sequence[msgspec.Raw]) -> Iterator[Key]:
    """Yield the keys that can be read; others are of kinds that are not used here (RFC 7517, section 5)."""
    for key in keys:
        with contextlib.suppress(msgspec.MsgspecError):
            yield json_decoder(Key).decode(key)


def _may_sign(key: Key, header: _Header) -> bool:
    if key.kty != ("RSA" if header.alg == "RS256" else "EC") or key.use != "sig" or key.alg not in ("", header.alg):
        return False
    return not header.kid or key.kid == header.kid


def _verify_rs256(key: Key, signature: bytes, message: bytes) -> bool:
    try:
        public = rsa.RSAPublicNumbers(_number(key.e), _number(key.n)).public_key()
        if public.key_size < LEAST_BITS:
            return False
        public.verify(signature, message, padding.PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError):
        return False
    return True


def _verify_es256(key: Key, signature: bytes, message: bytes) -> bool:
    if key.crv != "P-256" or len(signature) != 2 * P256_BYTES:
        return False
    r, s = (int.from_bytes(half) for half in (signature[:P256_BYTES], signature[P256_BYTES:]))
    try:
        public = ec.EllipticCurvePublicNumbers(_number(key.x), _number(key.y), ec.SECP256R1()).public_key()
        public.verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


VERIFY: dict[str, Callable[[Key, bytes, bytes], bool]] = {"RS256": _verify_rs256, "ES256": _verify_es256}


def unpacked(text: str) -> bytes:
    """Return the bytes of base64url without padding. Raises ValueError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _number(text: str) -> int:
    return int.from_bytes(unpacked(text))


def _instant(claims: Mapping[str, Any], name: str, otherwise: float | None = None) -> float:
    value = claims.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(f"it has no time `{name}`")
    return float(max(-(2**63), min(value, 2**63)))


def _b(text: str) -> bytes:
    return text.encode(errors="replace")


def _wrong(why: str) -> Denied:
    return Denied(f"the ID token is refused: {why}", code="E135", field="id_token", hint="`poise login`")


__all__ = ["DEVICE_CODE", "Client", "Device", "Granted", "Issuer", "Pending", "Published"]
