"""A copy of a collection stays right through what an API server and the network do to it."""

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from drivers.kubernetes_api import Dropped, KubernetesApi, Refusal, kubernetes_api, node
from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import find_access
from poise.drivers.kubernetes.watching import ANEW_SECONDS, Watched
from poise_kubernetes.records import NodeObject


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with kubernetes_api() as api:
        yield api


def client(api: KubernetesApi, folder: Path, waits: list[float] | None = None) -> Api:
    access = find_access("", {"KUBECONFIG": str(api.kubeconfig(folder / "config"))})
    return Api(access, (waits if waits is not None else []).append)


def names(watched: Watched[NodeObject]) -> set[str]:
    return {one.metadata.name for one in watched.items()}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def watched(api: KubernetesApi, tmp_path: Path) -> Iterator[Watched[NodeObject]]:
    """A copy that is kept up to date."""
    api.put("nodes", "a", **node())
    watched = Watched(client(api, tmp_path), "/api/v1/nodes", NodeObject)
    watched.start()
    until(lambda: names(watched) == {"a"}, "it is listed")
    yield watched
    watched.stop()


def test_what_is_created_changed_and_deleted_arrives(api: KubernetesApi, watched: Watched[NodeObject]) -> None:
    api.put("nodes", "b", **node())
    until(lambda: names(watched) == {"a", "b"}, "it has come")
    api.patch("nodes", "b", {"spec": {"unschedulable": True}})
    until(lambda: any(one.spec.unschedulable for one in watched.items()), "it has changed")
    api.remove("nodes", "b")
    until(lambda: names(watched) == {"a"}, "it has gone")
    lists = [path for method, path in api.calls if path == "/api/v1/nodes"]
    assert len(lists) == 2, "one list and one watch are enough"


def test_an_answer_of_somebody_else_counts_as_a_server_that_does_not_answer(tmp_path: Path) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>sign in</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        api = KubernetesApi()
        api.port = server.server_address[1]
        there = client(api, tmp_path)
        with pytest.raises(Away, match="not that of an API server: <html>sign in"):
            there.get("/version")
        with pytest.raises(Away, match="not a list of objects"):
            Watched(there, "/api/v1/nodes", NodeObject).list()
    finally:
        server.shutdown()
        server.server_close()


def test_a_version_that_is_too_old_leads_to_a_list_and_not_to_a_loop(
    api: KubernetesApi, watched: Watched[NodeObject]
) -> None:
    before = len(api.calls)
    api.remove("nodes", "a")
    api.put("nodes", "b", **node())
    api.compact()
    until(lambda: names(watched) == {"b"}, "it is listed again")
    assert len(api.calls) - before <= 4


def test_a_watch_that_ends_at_once_and_says_nothing_leads_to_a_list(
    api: KubernetesApi, watched: Watched[NodeObject]
) -> None:
    api.forget_silently("nodes", "a")
    api.empties = 2
    api.cut()
    until(lambda: names(watched) == set(), "it is listed again")


def test_a_list_comes_in_pages_and_begins_again_if_it_grows_too_old(api: KubernetesApi, tmp_path: Path) -> None:
    api.page = 2
    for number in range(5):
        api.put("nodes", f"n{number}", **node())
    asked: list[str] = []

    def compact_once(method: str, path: str) -> None:
        asked.append(path)
        if len(asked) == 2:
            api.put("nodes", "late", **node())
            api.compact()

    api.fault = compact_once
    watched = Watched(client(api, tmp_path), "/api/v1/nodes", NodeObject)
    watched.list()
    assert names(watched) == {"n0", "n1", "n2", "n3", "n4", "late"}


def test_the_copy_stays_while_the_server_is_away_and_is_right_afterwards(
    api: KubernetesApi, watched: Watched[NodeObject]
) -> None:
    refused: list[str] = []

    def away(method: str, path: str) -> None:
        refused.append(path)
        raise Dropped

    api.fault = away
    api.cut()
    until(lambda: len(refused) > 1, "it tries again")
    assert names(watched) == {"a"}
    api.put("nodes", "b", **node())
    api.fault = lambda method, path: None
    until(lambda: names(watched) == {"a", "b"}, "it goes on")


def test_a_deletion_that_never_arrives_is_found_by_the_next_list(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("nodes", "a", **node())
    now = [0.0]
    watched = Watched(client(api, tmp_path), "/api/v1/nodes", NodeObject, ticks=lambda: now[0])
    api.empties = 2
    watched.step()
    api.forget_silently("nodes", "a")
    assert names(watched) == {"a"}
    now[0] = ANEW_SECONDS + 1
    watched.step()
    assert names(watched) == set()


def test_a_busy_server_is_asked_again_when_it_says(api: KubernetesApi, tmp_path: Path) -> None:
    waits: list[float] = []
    left = [2]

    def busy(method: str, path: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise Refusal(429, "TooManyRequests", after=3)

    api.fault = busy
    api.put("nodes", "a", **node())
    assert client(api, tmp_path, waits).get("/api/v1/nodes/a")["metadata"]["name"] == "a"
    assert waits == [3, 3]


def test_a_server_that_stays_busy_is_left_alone_and_says_for_how_long(api: KubernetesApi, tmp_path: Path) -> None:
    def busy(method: str, path: str) -> None:
        raise Refusal(429, "TooManyRequests", after=7)

    api.fault = busy
    waits: list[float] = []
    with pytest.raises(Refused) as refused:
        client(api, tmp_path, waits).create("/api/v1/namespaces/ml/pods", {"metadata": {"name": "x"}})
    assert (refused.value.status, refused.value.after, len(waits)) == (429, 7, 3)
    watched = Watched(client(api, tmp_path), "/api/v1/nodes", NodeObject)
    assert watched.step() == 7


def test_a_connection_that_was_closed_meanwhile_is_opened_anew(api: KubernetesApi, tmp_path: Path) -> None:
    left = [0]

    def close(method: str, path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Dropped

    caller = client(api, tmp_path)
    caller.get("/version")
    api.fault, left[0] = close, 1
    caller.create("/api/v1/namespaces/ml/pods", {"metadata": {"name": "x"}, "spec": {}})
    assert [one["metadata"]["name"] for one in api.all("pods")] == ["x"]


def test_a_creation_whose_answer_is_lost_is_not_repeated_by_itself(api: KubernetesApi, tmp_path: Path) -> None:
    def lost(method: str, path: str) -> None:
        if method == "POST":
            raise Dropped

    api.after = lost
    with pytest.raises(Away):
        client(api, tmp_path).create("/api/v1/namespaces/ml/pods", {"metadata": {"name": "x"}, "spec": {}})
    assert [method for method, _ in api.calls].count("POST") == 1
    assert [one["metadata"]["name"] for one in api.all("pods")] == ["x"]
