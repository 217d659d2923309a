"""Asks the registry of an image for the current digest of a tag, through the OCI distribution API.

It sends a `HEAD` request for the manifest and, if the registry requires a token, a request for that. Requests to a
registry on this machine's loopback use no TLS, as in container engines. Redirects are not followed.
"""

import re
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from poise.decoding import json_decoder
from poise.drivers.exchange import Answer, exchange
from poise.errors import SpecError
from poise.model.images import HERE, Reference, parsed

SECONDS = 5.0
"""Time limit of one request."""

MOST_TOKEN = 64 * 1024
"""Maximum bytes of an answer with a token."""

MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class Unpinned(Exception):
    """The digest of an image cannot be determined, for this reason. The image may still exist."""


class _Login(msgspec.Struct):
    auth: str = ""


class _Logins(msgspec.Struct):
    auths: dict[str, _Login] = {}


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


_logins, _token = json_decoder(_Logins), json_decoder(_Token)


def pinned(image: str, logins: Path) -> str:
    """Return the name of an image with the current digest of its tag. `logins` is the file of credentials, which may be
    missing. Raises `Unpinned`, and SpecError if its registry does not have it for these credentials.
    """
    of = parsed(image)
    if of.digest or of.host == HERE:
        return image
    if not of.host:
        raise Unpinned("its name has no registry")
    login = _login(of, logins)
    try:
        status, digest = _asked(of, login)
    except (OSError, ValueError) as error:
        raise Unpinned(f"its registry does not answer: {error}") from None
    if status == 404:
        raise SpecError("the registry does not have this image", field="image", have=image, hint="check name and tag")
    if status in (401, 403):
        if login:
            what, hint = "the registry refuses the tenant's credentials for this image", f"`podman login {of.host}`"
            raise SpecError(what, field="image", have=image, hint=hint)
        raise Unpinned("its registry requires credentials that the control plane does not have")
    if status != 200 or not _DIGEST.fullmatch(digest):
        raise Unpinned(f"its registry answers {status} without a digest")
    return f"{image}@{digest}"


def _login(of: Reference, logins: Path) -> str:
    """Return the credentials for an image, as Basic authentication sends them; "" if there are none."""
    try:
        known = _logins.decode(logins.read_bytes()).auths
    except (OSError, msgspec.DecodeError):
        return ""
    names = f"{of.host}/{of.path}".split("/")
    for length in range(len(names), 0, -1):  # the most specific one
        if found := known.get("/".join(names[:length])):
            return found.auth
    return ""


def _asked(of: Reference, login: str) -> tuple[int, str]:
    """Return the status and the digest of a manifest. Raises OSError and ValueError."""
    host, path = of.host, of.path
    if host in ("docker.io", "index.docker.io"):
        host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
    place = f"/v2/{quote(path)}/manifests/{quote(of.tag or 'latest')}"
    basic = f"Basic {login}" if login else ""
    status, headers, _ = _request("HEAD", host, place, {"Accept": MANIFESTS})
    challenge = headers.get("www-authenticate", "")
    if status == 401 and challenge:
        wanted = f"Bearer {_token_of(host, challenge, basic)}" if challenge.lower().startswith("bearer") else basic
        if wanted:
            status, headers, _ = _request("HEAD", host, place, {"Accept": MANIFESTS, "Authorization": wanted})
    return status, headers.get("docker-content-digest", "")


def _token_of(host: str, challenge: str, basic: str) -> str:
    """Return a token for a challenge of a registry; "" if there is none. Only a registry on this machine's loopback can
    send the control plane to another server there.
    """
    asked = dict(_PARAMETER.findall(challenge))
    realm = urlsplit(asked.pop("realm", ""))
    here = _is_loopback(realm.netloc)
    if realm.scheme != ("http" if here else "https") or (here and not _is_loopback(host)):
        raise ValueError("it requires a token from an unsafe address")
    place = f"{realm.path}?{urlencode({name: asked[name] for name in ('service', 'scope') if name in asked})}"
    _, _, content = _request("GET", realm.netloc, place, {"Authorization": basic} if basic else {})
    try:
        given = _token.decode(content)
    except msgspec.DecodeError:
        return ""
    return given.token or given.access_token


def _request(method: str, host: str, place: str, headers: dict[str, str]) -> Answer:
    scheme = "http" if _is_loopback(host) else "https"
    return exchange(method, f"{scheme}://{host}{place}", headers, seconds=SECONDS, most=MOST_TOKEN)


def _is_loopback(host: str) -> bool:
    return host.rpartition(":")[0] in ("127.0.0.1", HERE) or host == "127.0.0.1"
