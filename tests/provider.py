"""An issuer of accounts (OpenID Connect) on loopback, with real keys: discovery, device codes, codes with PKCE, refresh
tokens that are good once, and tokens as a test forges them.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT, SECRET = "poise", "client-secret"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
Claims = dict[str, Any]


def packed(data: bytes | int) -> str:
    if isinstance(data, int):
        data = data.to_bytes((data.bit_length() + 7) // 8)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class SigningKey:
    """A key pair, and its public half as a JSON Web Key."""

    def __init__(self, kid: str, alg: str = "RS256", bits: int = 2048) -> None:
        self.kid, self.alg = kid, alg
        self.jwk: dict[str, str] = {"kid": kid, "alg": alg, "use": "sig"}
        self.sign: Callable[[bytes], bytes]
        if alg == "RS256":
            private = rsa.generate_private_key(65537, bits)
            numbers = private.public_key().public_numbers()
            self.jwk |= {"kty": "RSA", "n": packed(numbers.n), "e": packed(numbers.e)}
            self.sign = lambda message: private.sign(message, padding.PKCS1v15(), SHA256())
        else:
            elliptic = ec.generate_private_key(ec.SECP256R1())
            point = elliptic.public_key().public_numbers()
            x, y = (packed(value.to_bytes(32)) for value in (point.x, point.y))
            self.jwk |= {"kty": "EC", "crv": "P-256", "x": x, "y": y}

            def sign(message: bytes) -> bytes:
                r, s = decode_dss_signature(elliptic.sign(message, ec.ECDSA(SHA256())))
                return r.to_bytes(32) + s.to_bytes(32)

            self.sign = sign

    def token(self, claims: Claims, **header: Any) -> str:
        return signed({"alg": self.alg, "kid": self.kid} | header, claims, self.sign)


def signed(header: dict[str, Any], claims: Claims, sign: Callable[[bytes], bytes]) -> str:
    message = f"{packed(json.dumps(header).encode())}.{packed(json.dumps(claims).encode())}"
    return f"{message}.{packed(sign(message.encode()))}"


class Provider(ThreadingHTTPServer):
    """The issuer. `person` are the claims of whoever signs in; `forge` replaces the ID token of each answer. Answers
    wait for `open`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.keys = [SigningKey("k1"), SigningKey("k2", "ES256")]
        self.key = self.keys[0]
        self.person: Claims = {"sub": "1", "preferred_username": "ann@example.com", "groups": ["team-vision"]}
        self.forge: Callable[[Claims], str] | None = None
        self.redirects = ["http://127.0.0.1:7719/signed-in"]
        self.fails = 0
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []
        self.answers: list[str] = []
        """Whatever was sent: no secret of it may come out elsewhere."""
        self._devices: dict[str, bool] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, str] = {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def claims(self, **more: Any) -> Claims:
        now = int(time.time())
        return {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300} | self.person | more

    def approve(self) -> None:
        """The person enters every code."""
        self._devices = dict.fromkeys(self._devices, True)

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        kind, nonce = form.get("grant_type"), {}
        if kind == DEVICE_CODE:
            approved = self._devices.get(form["device_code"])
            if not approved:
                return 400, {"error": "invalid_grant" if approved is None else "authorization_pending"}
            del self._devices[form["device_code"]]
        elif kind == "authorization_code":
            begun = self._codes.pop(form["code"], None)
            verifier = packed(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
            if begun is None or begun["redirect_uri"] != form["redirect_uri"] or begun["code_challenge"] != verifier:
                return 400, {"error": "invalid_grant"}
            nonce = {"nonce": begun["nonce"]}
        elif kind != "refresh_token" or not self._refresh.pop(form["refresh_token"], ""):
            return 400, {"error": "invalid_grant"}
        refresh = secrets.token_urlsafe(16)
        self._refresh[refresh] = "good"
        claims = self.claims(**nonce)
        id_token = self.forge(claims) if self.forge is not None else self.key.token(claims)
        return 200, {"id_token": id_token, "refresh_token": refresh, "access_token": "unused", "token_type": "Bearer"}

    def answer(self, method: str, path: str, form: dict[str, str], named: str) -> tuple[int, Any]:
        self.asked.append(path)
        self.open.wait()
        if self.fails:
            return self.fails, {}
        if path == "/.well-known/openid-configuration":
            names = {"token": "token", "authorization": "authorize", "revocation": "revoke"}
            names["device_authorization"] = "device"
            told = {f"{name}_endpoint": f"{self.url}/{place}" for name, place in names.items()}
            return 200, {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **told}
        if path == "/keys":
            return 200, {"keys": [key.jwk for key in self.keys]}
        if method == "POST" and named != "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode():
            return 401, {"error": "invalid_client"}
        if path == "/device":
            code = secrets.token_urlsafe(16)
            self._devices[code] = False
            told = {"device_code": code, "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/enter"}
            return 200, {**told, "expires_in": 300, "interval": 1}
        if path == "/token":
            return self.token(form)
        if path == "/revoke":
            self._refresh.pop(form["token"], "")
            return 200, {}
        return 404, {}

    def signs_in(self, url: str) -> str:
        """What the browser of a person does with the page of the issuer: the URL to which it is sent back."""
        split = urlsplit(url)
        asked = dict(parse_qsl(split.query))
        assert (f"{split.scheme}://{split.netloc}{split.path}", asked["client_id"]) == (f"{self.url}/authorize", CLIENT)
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert asked["redirect_uri"] in self.redirects
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self._answer("GET", b"")

    def do_POST(self) -> None:
        self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, method: str, body: bytes) -> None:
        named = self.headers.get("Authorization", "")
        status, told = self.server.answer(method, self.path, dict(parse_qsl(body.decode())), named)
        content = json.dumps(told).encode()
        self.server.answers.extend(str(told[name]) for name in ("id_token", "refresh_token") if name in told)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def providing() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.shutdown()
    made.server_close()


def settings(provider: Provider, rules: str = '  - {group: team-*, tenant: "*"}') -> str:
    """The text of a file `sign-in.yaml`."""
    return f"kind: sign-in\nissuer: {provider.url}\nclient: {CLIENT}\nsecret_file: secret\nrules:\n{rules}\n"
