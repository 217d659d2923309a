"""What a gateway says of itself, and what it says to clients that send what they should not, over real sockets."""

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from system.living import Living, resident, until
from system.serving import Serving

APP = '''
"""A model of pictures and one of anything."""
from typing import Annotated

import msgspec

Row = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=16)]], msgspec.Meta(min_length=2, max_length=2)]

class Picture(msgspec.Struct, forbid_unknown_fields=True):
    rows: Annotated[list[Row], msgspec.Meta(min_length=2, max_length=2)]

class Verdict(msgspec.Struct):
    """What is to be seen."""
    sum: int

class Sees:
    def predict(self, batch: list[Picture]) -> list[Verdict]:
        return [Verdict(sum(map(sum, picture.rows))) for picture in batch]

class Says:
    def predict(self, batch):
        return batch
'''

FILES = {
    "sees.yaml": "kind: service\nname: sees\nmodel: app.py:Sees\nresources: {cpu: 100m}\n",
    "says.yaml": "kind: service\nname: says\nmodel: app.py:Says\nresources: {cpu: 100m}\nbody: 64MiB\n",
}
PICTURE = {"rows": [[1, 2], [3, 4]]}
TIMES = ("soon", "-1", "0", "nan", "inf", "")
MIB = 1 << 20


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    living = Living()
    try:
        living.file("app.py", APP)
        for name, text in FILES.items():
            living.file(name, text)
        served = Serving(living, *FILES)
        for name in ("sees", "says"):
            served.until_said(f"{name}: 1 of 1 ready")
        yield served
        assert served.end() == 0
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_the_document_says_what_each_model_takes_and_gives(serving: Serving) -> None:
    told = serving.ask(b"", "/openapi.json", "GET")
    assert (told.status, told.headers["content-type"]) == (200, "application/json")
    document = told.value
    assert document["openapi"] == "3.1.0"
    assert list(document["paths"]) == [
        "/predict/sees", "/predict/says", "/healthz", "/readyz", "/metrics", "/canaries", "/openapi.json"
    ]  # fmt: skip
    sees = document["paths"]["/predict/sees"]["post"]
    taken = sees["requestBody"]["content"]["application/json"]["schema"]
    assert taken == {"$ref": "#/components/schemas/sees.Picture"}
    rows = document["components"]["schemas"]["sees.Picture"]["properties"]["rows"]
    assert (rows["minItems"], rows["items"]["items"]["maximum"]) == (2, 16)
    given = sees["responses"]["200"]["content"]["application/json"]["schema"]
    assert document["components"]["schemas"][given["$ref"].rpartition("/")[2]]["required"] == ["sum"]
    statuses = ["200", "400", "401", "403", "413", "415", "422", "429", "431", "500", "501", "502", "503", "504"]
    assert sorted(sees["responses"]) == statuses
    says = document["paths"]["/predict/says"]["post"]
    assert says["requestBody"]["content"] == {"application/json": {"schema": {}}}


@pytest.mark.parametrize(
    ("says", "asked"),
    [
        ("Expected `array` of length >= 2 - at `$.rows`", {"rows": [[1, 2]]}),
        ("Expected `array` of length <= 2 - at `$.rows[0]`", {"rows": [[1, 2, 3], [1, 2]]}),
        ("Expected `int`, got `float` - at `$.rows[0][1]`", {"rows": [[1, 2.5], [1, 2]]}),
        ("Expected `int` <= 16 - at `$.rows[0][1]`", {"rows": [[1, 17], [1, 2]]}),
        ("Expected `array`, got `str` - at `$.rows`", {"rows": "1 2 3 4"}),
    ],
)
def test_a_wrong_shape_or_type_is_told_with_its_place(serving: Serving, says: str, asked: Any) -> None:
    told = serving.ask(asked, "/predict/sees")
    assert (told.status, says in told.value["error"]["message"]) == (422, True), told.body


def test_what_is_nested_deeply_is_read_or_refused_and_ends_nobody(serving: Serving) -> None:
    assert serving.ask(b"[" * 500 + b"]" * 500, "/predict/says").status == 200
    for deep in (b"[" * 1_000_000 + b"]" * 1_000_000, b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000):
        told = serving.ask(deep, "/predict/says")
        assert (told.status, "the body cannot be read" in told.value["error"]["message"]) == (400, True)
    assert "0 of 1" not in serving.text


@pytest.mark.parametrize(("path", "allowed"), [("/predict/sees", "POST, OPTIONS"), ("/metrics", "GET, HEAD, OPTIONS")])
def test_methods_are_told_as_http_wants_it(serving: Serving, path: str, allowed: str) -> None:
    asked = serving.ask(b"", path, "OPTIONS")
    assert (asked.status, asked.headers["allow"], asked.body) == (200, allowed, b"")
    refused = serving.ask(b"{}", path, "DELETE")
    assert (refused.status, refused.headers["allow"]) == (405, allowed)
    assert serving.ask(b"", f"{path}/nope", "OPTIONS").status == 404


def test_an_answer_to_head_has_no_body(serving: Serving) -> None:
    head = b"HEAD %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    close = b"Connection: close\r\n"
    for path, status in ((b"/predict/sees", b"405"), (b"/predict/nope", b"404"), (b"/healthz", b"200")):
        told = serving.raw(head % (path, b"") + head % (b"/healthz", close))
        answers = re.findall(rb"HTTP/1.1 (\d+)[^{]*?\r\n\r\n", told)
        assert answers == [status, b"200"] and b"{" not in told, "where a body began, the second would be lost in it"


def test_a_path_is_the_same_however_it_is_spelled(serving: Serving) -> None:
    body = json.dumps(PICTURE).encode()
    for target in (b"/predict/%73ees", b"http://localhost/predict/sees?a=1", b"/predict/sees?a=%20"):
        told = serving.raw(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (target, len(body), body)
        )
        assert told.startswith(b"HTTP/1.1 200"), told


@pytest.mark.parametrize(
    ("name", "said"),
    [("x_poise_lane", "fast"), ("x_poise_lane", ""), *(("x_request_timeout_seconds", one) for one in TIMES)],
)
def test_a_header_that_says_what_it_may_not_is_refused(serving: Serving, name: str, said: str) -> None:
    told = serving.ask(PICTURE, "/predict/sees", **{name: said})
    assert told.status == 400
    assert name.replace("_", "-") in told.value["error"]["message"].lower()


class Healthy:
    """Somebody who asks one question after the other while the rest happens."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.statuses: list[int] = []
        self.slowest = 0.0

    def _ask(self) -> None:
        while not self._over.is_set():
            told = self._serving.ask(PICTURE, "/predict/sees")
            self.statuses.append(told.status)
            self.slowest = max(self.slowest, told.took)
            time.sleep(0.01)

    def __enter__(self) -> "Healthy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def dialled(serving: Serving) -> socket.socket:
    host, port = serving.url.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_a_gibibyte_is_refused_and_not_kept(serving: Serving) -> None:
    """Said beforehand, it is refused before it comes; in chunks, once it is more than may be."""
    before = resident(serving.process.pid)
    with Healthy(serving) as healthy:
        told = serving.raw(b"POST /predict/says HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        assert told.startswith(b"HTTP/1.1 413 ") and b"64 MiB at most" in told
        with dialled(serving) as client:
            client.sendall(b"POST /predict/says HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
            for _ in range(1024):
                client.sendall(chunk)
            assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
            grown = resident(serving.process.pid) - before
    assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB"
    assert set(healthy.statuses) == {200} and healthy.slowest < 5.0


def test_all_bodies_together_are_bounded(serving: Serving) -> None:
    """Seventeen clients at one address, of whom none has sent the last byte: a quarter of what one frame holds."""
    before = resident(serving.process.pid)
    size = 63 * MIB
    clients = [dialled(serving) for _ in range(17)]
    with Healthy(serving) as healthy:
        for client in clients:
            client.sendall(b"POST /predict/says HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        for part in range(63):  # all get on, however long it takes
            for client in clients:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has its answer
                    client.sendall(bytes(MIB - (part == 62)))
        answers = [client.recv(4096) for client in select.select(clients, [], [], 10)[0]]
        grown = resident(serving.process.pid) - before
        for client in clients:
            client.close()
    assert answers and all(one.startswith(b"HTTP/1.1 503 ") and b"retry-after" in one for one in answers)
    assert grown < 400 * MIB, f"{grown / MIB:.0f} MiB"
    assert healthy.statuses.count(200) > 0 and set(healthy.statuses) <= {200, 503}
    until(lambda: serving.ask(bytes(32 * MIB), "/predict/says").status == 400, "there is room again")
    until(lambda: resident(serving.process.pid) - before < 200 * MIB, "what was held is given back")


def test_a_giant_header_is_not_kept(serving: Serving) -> None:
    before = resident(serving.process.pid)
    with Healthy(serving) as healthy:
        for kind in (b"X-A: ", b"X-"):
            with dialled(serving) as client:
                client.sendall(b"POST /predict/says HTTP/1.1\r\nHost: localhost\r\n" + kind)
                try:
                    for _ in range(64):
                        client.sendall(b"y" * MIB)
                    came = client.recv(4096)
                except (ConnectionResetError, BrokenPipeError):
                    came = b""
            assert came[8:12] in (b" 431", b"")
    assert resident(serving.process.pid) - before < 20 * MIB
    assert set(healthy.statuses) == {200}


def test_many_questions_at_once_on_one_connection_are_answered_in_their_order(serving: Serving) -> None:
    """More than are read ahead, and nobody reads the answers until all are sent."""
    before = resident(serving.process.pid)
    count = 2_000
    asked = b"".join(
        b"POST /predict/says HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%d" % (len(str(one)), one)
        for one in range(count)
    )
    with Healthy(serving) as healthy, dialled(serving) as client:
        sending = threading.Thread(target=client.sendall, args=(asked,))
        sending.start()
        came = b""
        while came.count(b"HTTP/1.1") < count or not came.endswith(b"%d" % (count - 1)):
            part = client.recv(1 << 20)
            assert part, came[-200:]
            came += part
        sending.join()
    assert [int(one) for one in re.findall(rb"\r\n\r\n(\d+)", came)] == list(range(count))
    assert resident(serving.process.pid) - before < 50 * MIB
    assert set(healthy.statuses) == {200}
