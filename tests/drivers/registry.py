"""A registry of images on this machine's loopback: it serves what `podman save --format oci-dir` wrote, to whoever has
the credentials."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

INDEX = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """`tags` maps `name:tag` to the content of a manifest. With `login` it asks for Basic authentication, or with
    `by_token` for a token that it gives for these credentials.
    """

    def __init__(self, login: str = "", *, by_token: bool = False) -> None:
        self.login = base64.b64encode(login.encode()).decode() if login else ""
        self.by_token = by_token
        self.tags: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.open = threading.Event()
        """Answers wait for it."""
        self.open.set()
        self.host = ""

    def add(self, name: str, manifest: bytes) -> str:
        """Add an image under `NAME:TAG`. Return its digest."""
        self.tags[name] = manifest
        digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
        self.tags[f"{name.partition(':')[0]}:{digest}"] = manifest
        return digest

    def add_saved(self, name: str, folder: Path) -> str:
        """Add an image that podman has saved."""
        for path in (folder / "blobs/sha256").iterdir():
            self.blobs[f"sha256:{path.name}"] = path.read_bytes()
        return self.add(name, self.blobs[json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]])

    def logins(self, path: Path) -> Path:
        """Write a file with the credentials."""
        path.write_text(json.dumps({"auths": {self.host: {"auth": self.login}}}))
        return path

    @contextmanager
    def serving(self) -> Iterator["Registry"]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            def do_HEAD(self) -> None:
                registry.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.host = f"127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, given = request.path.partition("?")[0], request.headers.get("Authorization", "")
        self.asked.append(f"{request.command} {path}")
        self.open.wait()
        basic = f"Basic {self.login}"
        if path == "/token":
            content = json.dumps({"token": "a-token" if given == basic else "none"}).encode()
            return self._say(request, 200, content, "application/json")
        if self.login and given != ("Bearer a-token" if self.by_token else basic):
            bearer = f'Bearer realm="http://{self.host}/token",service="here",scope="pull"'
            return self._say(
                request, 401, b"", "text/plain", {"WWW-Authenticate": bearer if self.by_token else 'Basic realm="here"'}
            )
        name, kind, reference = "", path.rpartition("/")[0].rpartition("/")[2], path.rpartition("/")[2]
        name = path.removeprefix("/v2/").rpartition(f"/{kind}/")[0]
        if path == "/v2/":
            return self._say(request, 200, b"{}", "application/json")
        found = self.tags.get(f"{name}:{reference}") if kind == "manifests" else self.blobs.get(reference)
        if found is None:
            return self._say(request, 404, b"{}", "application/json")
        digest = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(found).hexdigest()}"}
        return self._say(request, 200, found, INDEX if kind == "manifests" else "application/octet-stream", digest)

    def _say(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        kind: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(content))} | (headers or {})).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)
