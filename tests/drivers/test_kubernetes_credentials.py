"""Credentials for a cluster: what a kubeconfig may say, and what a Pod finds of its own."""

import base64
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from poise.config import Home
from poise.drivers.authority import ensure_authority
from poise.drivers.kubernetes.api import Api, Away
from poise.drivers.kubernetes.credentials import Access, find_access
from poise.drivers.kubernetes.proxies import Proxy
from poise.drivers.security import ensure_home
from poise.errors import Fault, InputError


def config(folder: Path, name: str = "config", **entries: Any) -> Path:
    known: dict[str, Any] = {
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example.org:6443/proxy/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    file = folder / name
    file.write_text(yaml.safe_dump({**known, **entries}))
    return file


def certificate(folder: Path) -> tuple[bytes, bytes]:
    """A certificate, and its key."""
    home = Home(folder / "home")
    ensure_home(home)
    return ensure_authority(home), (home.authority / "authority.key").read_bytes()


def found(file: Path, context: str = "") -> Access:
    return find_access(context, {"KUBECONFIG": str(file)}, Path("/nowhere"))


def user(folder: Path, **fields: Any) -> Access:
    return found(config(folder, users=[{"name": "u", "user": fields}]))


def test_the_current_context_or_the_one_that_is_named_counts(tmp_path: Path) -> None:
    one = found(config(tmp_path))
    assert (one.host, one.port, one.path, one.namespace) == ("api.example.org", 6443, "/proxy", "ml")
    assert one.token(False) == "secret"
    assert found(config(tmp_path), "two").namespace == "default"
    with pytest.raises(InputError) as refused:
        found(config(tmp_path), "three")
    assert refused.value.record.have == "one, two"


def test_of_several_files_the_first_that_has_an_entry_counts(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("current-context: two\n")
    paths = f"{tmp_path / 'missing'}:{empty}:{config(tmp_path)}"
    assert find_access("", {"KUBECONFIG": paths}, Path("/nowhere")).name == "two"


def test_a_token_in_a_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    access = user(tmp_path, tokenFile="token")
    assert access.token(False) == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.token(False) == "first"
    assert access.token(True) == "second"


def test_a_command_gives_tokens_until_they_expire(tmp_path: Path) -> None:
    script = tmp_path / "gives"
    answer = {"status": {"token": "from $1 of $WHO", "expirationTimestamp": "2001-01-01T00:00:00Z"}}
    text = json.dumps(answer).replace('"', '\\"')
    lines = [f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/asked', f"echo x >> {tmp_path}/n", f'echo "{text}"']
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    script.chmod(0o755)
    told = {"command": str(script), "args": ["here"], "env": [{"name": "WHO", "value": "me"}]}
    access = user(tmp_path, exec=told)
    assert access.token(False) == "from here of me"
    assert json.loads((tmp_path / "asked").read_text())["kind"] == "ExecCredential"
    access.token(False)
    assert (tmp_path / "n").read_text() == "x\nx\n", "the first had expired"
    script.write_text("#!/bin/sh\necho you are not logged in >&2\nexit 1\n")
    with pytest.raises(Fault) as failed:
        access.token(False)
    assert "you are not logged in" in failed.value.record.have


def test_a_command_beside_the_kubeconfig_may_give_a_certificate_and_is_told_the_cluster(tmp_path: Path) -> None:
    authority, key = certificate(tmp_path)
    status = {"clientCertificateData": authority.decode(), "clientKeyData": key.decode()}
    (tmp_path / "answer").write_text(json.dumps({"status": status}))
    script = tmp_path / "gives"
    script.write_text(f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    script.chmod(0o755)
    access = user(tmp_path, exec={"command": "./gives", "provideClusterInfo": True})
    assert access.token(False) == ""
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked["spec"]["cluster"]["server"] == "https://api.example.org:6443/proxy/"
    for wrong in ('{"status": {}}', '{"status": null}', '{"status": {"token": "x", "expirationTimestamp": "soon"}}'):
        (tmp_path / "answer").write_text(wrong)
        with pytest.raises(Fault, match="gives no token"):
            access.token(True)


def test_a_command_that_fails_later_counts_as_a_server_that_does_not_answer(tmp_path: Path) -> None:
    access = user(tmp_path, exec={"command": "./missing"})
    with pytest.raises(Away, match=r"gives no token: .*missing"):
        Api(access).get("/version")
    with pytest.raises(Away, match="gives no token"):
        list(Api(access).stream("/api/v1/nodes", {}, 1))


def test_a_user_who_acts_as_another_one_does_so_here_too(tmp_path: Path) -> None:
    assert user(tmp_path, **{"as": "trainer"}).headers == {"Impersonate-User": "trainer"}
    with pytest.raises(InputError, match="`as-groups` is not supported"):
        user(tmp_path, **{"as": "trainer", "as-groups": ["a"]})


def test_certificates_are_read_from_the_file_or_beside_it(tmp_path: Path) -> None:
    authority, key = certificate(tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "key").write_bytes(key)
    inline = base64.b64encode(authority).decode()
    cluster = {"server": "https://127.0.0.1", "certificate-authority": "ca.crt"}
    who = {"client-certificate-data": inline, "client-key": "key"}
    access = found(config(tmp_path, clusters=[{"name": "c", "cluster": cluster}], users=[{"name": "u", "user": who}]))
    assert access.tls is not None
    assert access.tls.cert_store_stats()["x509"] == 1
    assert access.token(False) == ""


@pytest.mark.parametrize(
    ("cluster", "who", "what"),
    [
        ({"server": "api.example.org"}, {}, "no usable `server`"),
        ({"server": "https://a", "proxy-url": "socks5://b"}, {}, "this proxy cannot be used"),
        ({"server": "https://a", "proxy-url": "http://b:x"}, {}, "this proxy cannot be used"),
        ({"server": "https://a", "certificate-authority": "missing"}, {}, "cannot be read"),
        ({"server": "https://a", "certificate-authority-data": "x"}, {}, "cannot be read"),
        ({"server": "https://a", "certificate-authority-data": "eA=="}, {}, "cannot be used"),
        ({"server": "https://a"}, {"auth-provider": {"name": "gcp"}}, "no longer part of Kubernetes"),
    ],
)
def test_what_cannot_be_used_is_told(cluster: dict[str, Any], who: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        found(config(tmp_path, clusters=[{"name": "c", "cluster": cluster}], users=[{"name": "u", "user": who}]))
    assert what in str(refused.value)


def test_the_proxy_is_that_of_the_kubeconfig_or_of_the_environment_unless_it_excludes_the_server(
    tmp_path: Path,
) -> None:
    cluster = {"server": "https://api.example.org", "proxy-url": "http://b:3128"}
    file = config(tmp_path, clusters=[{"name": "c", "cluster": cluster}])
    assert found(file).proxy == Proxy("b", 3128)

    def of(server: str, **environ: str) -> Proxy | None:
        file = config(tmp_path, clusters=[{"name": "c", "cluster": {"server": server}}])
        return find_access("", {"KUBECONFIG": str(file), **environ}, Path("/nowhere")).proxy

    there = "https://api.example.org:6443"
    assert of(there) is None
    assert of(there, HTTPS_PROXY="http://me:p%40ss@b:3128") == Proxy("b", 3128, "Basic bWU6cEBzcw==")
    assert of(there, https_proxy="b", no_proxy="example.com") == Proxy("b", 80)
    for excluded in ("*", "api.example.org", ".example.org", "example.org"):
        assert of(there, HTTPS_PROXY="http://b", NO_PROXY=f"a, {excluded}") is None
    assert of("https://10.1.2.3", HTTPS_PROXY="http://b", NO_PROXY="10.0.0.0/8") is None
    for local in ("https://127.0.0.1:6443", "https://localhost"):
        assert of(local, HTTPS_PROXY="http://b") is None


def test_a_server_is_reached_through_its_proxy(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def proxy(sock: socket.socket, answer: bytes) -> None:
        with sock, sock.accept()[0] as client:
            asked.append(client.recv(1000))
            client.sendall(answer)
            asked.append(client.recv(1000))
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def get(answer: bytes) -> Any:
        sock = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=proxy, args=(sock, answer), daemon=True)
        thread.start()
        cluster = {"server": "http://api.example.org", "proxy-url": f"http://127.0.0.1:{sock.getsockname()[1]}"}
        try:
            return Api(found(config(tmp_path, clusters=[{"name": "c", "cluster": cluster}]))).get("/version")
        finally:
            thread.join(10)

    assert get(b"HTTP/1.1 200 Connection established\r\n\r\n") == {}
    assert asked[0].startswith(b"CONNECT api.example.org:80 HTTP/1.1\r\n")
    assert asked[1].startswith(b"GET /version HTTP/1.1\r\n")
    with pytest.raises(Away, match=r"answers: HTTP/1\.1 407 Who are you"):
        get(b"HTTP/1.1 407 Who are you\r\n\r\n")


def test_a_pod_finds_its_own_cluster_and_reads_its_token_again(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "token").write_text("mine")
    (own / "namespace").write_text("ml")
    (own / "ca.crt").write_bytes(certificate(tmp_path)[0])
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": str(tmp_path / "missing")}
    access = find_access("", environ, own)
    assert (access.host, access.port, access.namespace, access.token(False)) == ("10.0.0.1", 443, "ml", "mine")
    (own / "token").write_text("next")
    assert access.token(True) == "next"


def test_where_there_are_none_the_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        find_access("", {"KUBECONFIG": str(tmp_path / "missing")}, tmp_path)
    assert refused.value.record.have == str(tmp_path / "missing")
