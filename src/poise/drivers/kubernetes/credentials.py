"""Find the API server of a cluster and its credentials: in a kubeconfig, or as a Pod of the cluster itself.

A kubeconfig is read as `kubectl` reads it: `KUBECONFIG` may name several files, and the first file with an entry wins.
Token files are reread, since clusters rotate tokens within the hour, and so are tokens from commands (`exec`).
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from poise.drivers.kubernetes.proxies import Proxy, find_proxy
from poise.errors import Fault, InputError

OWN = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a Pod's service account."""

FRESH_SECONDS = 60.0
"""Seconds for which a token is used that comes from a file, or from a command that gives no expiration."""

EXEC_SECONDS = 30.0

_HINT = "`kubectl config get-contexts` lists what there is; `poise up --on kubernetes:CONTEXT`"


class Access(NamedTuple):
    """An API server: its address, the default namespace, the TLS context, and a function that returns the current token
    (with True, a fresh one). The token is empty if a certificate identifies the client; ask for it before a connection
    is opened, since a command may give a new certificate. `headers` are sent with each request.
    """

    name: str
    host: str
    port: int
    path: str
    namespace: str
    tls: ssl.SSLContext | None
    token: Callable[[bool], str]
    server_name: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    proxy: Proxy | None = None


def find_access(context: str, environ: Mapping[str, str] = os.environ, own: Path = OWN) -> Access:
    """Return the cluster of this context, or of the current one. Raises `InputError` if there is none."""
    files = [Path(one) for one in environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    files = files or [Path("~/.kube/config").expanduser()]
    there = [file for file in files if file.is_file()]
    if not there and not context and "KUBERNETES_SERVICE_HOST" in environ and (own / "token").exists():
        return _around(environ, own)
    if not there:
        raise InputError(
            "there are no credentials for a Kubernetes cluster",
            field="--on",
            need="a kubeconfig, or a Pod with a service account",
            have=", ".join(map(str, files)),
            hint="set KUBECONFIG to a file that `kubectl` can use",
        )
    return _from_files(there, context, environ)


def _around(environ: Mapping[str, str], own: Path) -> Access:
    """Return the cluster in which this Pod runs."""
    tls = ssl.create_default_context(cafile=str(own / "ca.crt"))
    host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
    space = (own / "namespace").read_text().strip() if (own / "namespace").exists() else "default"
    return Access("this Pod's cluster", host, port, "", space, tls, _kept((own / "token").read_text))


def _from_files(files: list[Path], context: str, environ: Mapping[str, str]) -> Access:
    parts = [(file, _parsed(file)) for file in files]
    wanted = context or next((str(part["current-context"]) for _, part in parts if part.get("current-context")), "")
    _, chosen = _entry(parts, "context", wanted)
    place, cluster = _entry(parts, "cluster", str(chosen.get("cluster", "")))
    user_place, user = _entry(parts, "user", str(chosen["user"])) if chosen.get("user") else (place, {})
    server = urlsplit(str(cluster.get("server", "")))
    if server.scheme not in ("http", "https") or not server.hostname:
        raise _wrong(place, "the cluster has no usable `server`", str(cluster.get("server", "")))
    tls = _tls(place, cluster, user_place, user) if server.scheme == "https" else None
    return Access(
        name=wanted,
        host=server.hostname,
        port=server.port or (443 if tls else 80),
        path=server.path.rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
        tls=tls,
        token=_token_of(user_place, user, cluster, tls),
        server_name=str(cluster.get("tls-server-name", "")),
        headers=_impersonation(user_place, user),
        proxy=find_proxy(server.scheme, server.hostname, str(cluster.get("proxy-url") or ""), environ),
    )


def _parsed(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(file, "the kubeconfig cannot be read", str(error).partition("\n")[0]) from None
    if not isinstance(found, dict):
        raise _wrong(file, "the kubeconfig is not a mapping", type(found).__name__)
    return found


def _entry(parts: list[tuple[Path, dict[str, Any]]], kind: str, name: str) -> tuple[Path, dict[str, Any]]:
    for file, part in parts:
        for one in part.get(f"{kind}s") or ():
            if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(kind), dict):
                return file, one[kind]
    have = ", ".join(str(one.get("name")) for _, part in parts for one in part.get(f"{kind}s") or ())
    what = f"the kubeconfig has no {kind} `{name}`" if name else "the kubeconfig has no current context"
    raise InputError(what, field="--on", have=have or "none", hint=_HINT)


def _tls(place: Path, cluster: Mapping[str, Any], user_place: Path, user: Mapping[str, Any]) -> ssl.SSLContext:
    trusted = _content(place, cluster, "certificate-authority")
    try:
        tls = ssl.create_default_context(cadata=trusted.decode() if trusted else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate, key = (_content(user_place, user, name) for name in ("client-certificate", "client-key"))
        if certificate and key:
            _show(tls, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise _wrong(place, "a certificate of the kubeconfig cannot be used", str(error)) from None
    return tls


def _show(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load the client certificate; the ssl module reads it only from a file."""
    with tempfile.NamedTemporaryFile(prefix="poise-") as file:  # only this user can read it
        file.write(certificate.rstrip(b"\n") + b"\n" + key)
        file.flush()
        tls.load_cert_chain(file.name)


def _content(place: Path, entry: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a certificate or key, inline in the kubeconfig or from a file beside it."""
    try:
        if inline := entry.get(f"{name}-data"):
            return base64.b64decode(inline, validate=True)
        if path := entry.get(name):
            return (place.parent / str(path)).read_bytes()
    except (OSError, binascii.Error) as error:
        raise _wrong(place, f"`{name}` cannot be read", str(error)) from None
    return b""


def _impersonation(place: Path, user: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers with which this user acts as another one."""
    for field in ("as-groups", "as-user-extra"):
        if user.get(field):
            raise _wrong(place, f"`{field}` is not supported", str(user[field]))
    fields = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    return {name: str(value) for name, value in fields.items() if value}


def _token_of(
    place: Path, user: Mapping[str, Any], cluster: Mapping[str, Any], tls: ssl.SSLContext | None
) -> Callable[[bool], str]:
    if user.get("auth-provider"):
        raise _wrong(place, "`auth-provider` is no longer part of Kubernetes", "use `exec`")
    if user.get("token"):
        return lambda _: str(user["token"])
    if user.get("tokenFile"):
        return _kept((place.parent / str(user["tokenFile"])).read_text)
    if user.get("exec"):
        return _Command(place, user["exec"], cluster, tls)
    return lambda _: ""


def _kept(read: Callable[[], str]) -> Callable[[bool], str]:
    """Return a function that caches a token and rereads it after `FRESH_SECONDS`."""
    known: dict[str, tuple[float, str]] = {}

    def token(anew: bool) -> str:
        at, text = known.get("", (0.0, ""))
        if anew or not text or time.monotonic() - at > FRESH_SECONDS:
            text = read().strip()
            known[""] = time.monotonic(), text
        return text

    return token


class _Command:
    """A kubeconfig command that prints tokens or client certificates, as cloud providers supply them. It runs once for
    all threads.
    """

    def __init__(
        self, place: Path, told: Mapping[str, Any], cluster: Mapping[str, Any], tls: ssl.SSLContext | None
    ) -> None:
        self._place, self._told, self._cluster, self._tls = place, told, cluster, tls
        self._token, self._until = "", 0.0
        self._lock = threading.Lock()

    def __call__(self, anew: bool) -> str:
        with self._lock:
            if anew or time.time() > self._until:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        program = str(self._told.get("command", ""))
        if "/" in program:  # as for `kubectl`, it may be beside the kubeconfig
            program = str(self._place.parent / program)
        command = [program, *map(str, self._told.get("args") or ())]
        more = {str(of.get("name")): str(of.get("value")) for of in self._told.get("env") or ()}
        cluster = {"cluster": dict(self._cluster)} if self._told.get("provideClusterInfo") else {}
        asked = {
            "apiVersion": self._told.get("apiVersion", "client.authentication.k8s.io/v1"),
            "kind": "ExecCredential",
            "spec": {"interactive": False, **cluster},
        }
        try:
            done = subprocess.run(  # noqa: S603 — the command that the user's own kubeconfig names
                command,
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=EXEC_SECONDS,
                env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked), **more},
            )
            status = json.loads(done.stdout)["status"]
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            if certificate and key and self._tls is not None:
                _show(self._tls, str(certificate).encode(), str(key).encode())
                self._token = str(status.get("token") or "")
            else:
                self._token = str(status["token"])
            ends = status.get("expirationTimestamp")
            self._until = _moment(ends) - FRESH_SECONDS if ends else time.time() + FRESH_SECONDS
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            have = f"{command[0]}: {said.decode(errors='replace').strip()[:200]}"
            raise Fault("the command of the kubeconfig gives no token", code="E214", field="--on", have=have) from None


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _wrong(file: Path, what: str, have: str) -> InputError:
    return InputError(what, field=str(file), have=have, hint="`kubectl get nodes` must work with it")
