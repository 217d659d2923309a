"""Sign-in with a certified issuer (`oidc-provider` for Node). The tests fill in its pages as a person would."""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

import pytest
from provider import CLIENT, DEVICE_CODE, SECRET, packed

from poise.drivers.oidc import Client, Issuer, Pending
from poise.errors import Denied
from poise.model.sign_in import compile_sign_in
from poise.model.tenants import Role

AT = Path(sys.prefix) / "issuer"
SCRIPT = Path(__file__).parents[1] / "issuer" / "issuer.mjs"
CALLBACK = "http://127.0.0.1:7719/signed-in"
SCOPES = ("openid", "profile", "offline_access")
STEPS = 12
ME = Client(CLIENT, SECRET)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    node = shutil.which("node")
    if node is None or not (AT / "node_modules" / "oidc-provider").exists():
        pytest.skip("`oidc-provider` is missing: `make servers` fetches it with npm")
    script = AT / SCRIPT.name  # Node looks for packages beside the script
    shutil.copy(SCRIPT, script)
    process = subprocess.Popen([node, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield Issuer(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


class Landed(Exception):
    """The issuer has sent the browser to this client."""


class Redirects(HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Request | None:
        if newurl.startswith(CALLBACK):
            raise Landed(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def enter(url: str, name: str) -> None:
    """Open a URL, and fill in the pages that follow as the person `name`. Raises `Landed`."""
    browser = build_opener(HTTPCookieProcessor(CookieJar()), Redirects())
    asked = Request(url)  # noqa: S310 — of the issuer on loopback
    for _ in range(STEPS):
        with browser.open(asked, timeout=30) as answer:
            at, page = answer.url, answer.read().decode()
        form = re.search(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', page, re.DOTALL)
        if form is None:
            return
        fields = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form[2]))
        if 'name="login"' in form[2]:
            fields |= {"login": name, "password": "any"}
        asked = Request(urljoin(at, form[1]), urlencode(fields).encode())  # noqa: S310
    raise AssertionError(f"no end after {STEPS} pages: {page}")


def test_a_person_signs_in_by_device_code_renews_and_signs_out(issuer: Issuer) -> None:
    device = issuer.device(ME, SCOPES)
    proof = {"grant_type": DEVICE_CODE, "device_code": device.device_code}
    with pytest.raises(Pending):
        issuer.redeem(ME, proof)
    enter(device.verification_uri_complete, "ann")
    granted = issuer.redeem(ME, proof)
    settings = {"kind": "sign-in", "issuer": issuer.url, "client": CLIENT}
    rules = [{"group": "team-*", "tenant": "*", "role": "operator"}]
    identity = compile_sign_in(settings | {"rules": rules}).identity(issuer.claims(granted.id_token, ME))
    assert identity == (f"{issuer.url} ann", "ann-example.com", "vision", Role.OPERATOR, "")
    renewed = issuer.redeem(ME, {"grant_type": "refresh_token", "refresh_token": granted.refresh_token})
    assert issuer.claims(renewed.id_token, ME)["sub"] == "ann"
    issuer.revoke(ME, renewed.refresh_token)
    with pytest.raises(Denied):
        issuer.redeem(ME, {"grant_type": "refresh_token", "refresh_token": renewed.refresh_token})
    with pytest.raises(Denied):
        issuer.redeem(ME, proof)


def test_a_person_signs_in_with_a_browser(issuer: Issuer) -> None:
    verifier, nonce = "v" * 43, "n" * 20
    challenge = packed(hashlib.sha256(verifier.encode()).digest())
    asked = {"redirect_uri": CALLBACK, "state": "s", "nonce": nonce}
    page = issuer.page(ME, SCOPES, asked | {"code_challenge": challenge, "code_challenge_method": "S256"})
    with pytest.raises(Landed) as landed:
        enter(page, "bob")
    answer = dict(parse_qsl(urlsplit(str(landed.value)).query))
    proof = {"grant_type": "authorization_code", "code": answer["code"], "redirect_uri": CALLBACK}
    with pytest.raises(Denied):
        issuer.redeem(ME, proof | {"code_verifier": "x" * 43})
    with pytest.raises(Landed) as landed:
        enter(page, "bob")
    answer = dict(parse_qsl(urlsplit(str(landed.value)).query))
    granted = issuer.redeem(ME, proof | {"code": answer["code"], "code_verifier": verifier})
    assert answer["state"] == "s" and issuer.claims(granted.id_token, ME, nonce)["sub"] == "bob"
    with pytest.raises(Denied):
        issuer.claims(granted.id_token, ME, "of another sign-in")


def test_another_secret_is_refused(issuer: Issuer) -> None:
    with pytest.raises(Denied):
        issuer.device(Client(CLIENT, "another"), SCOPES)
