"""What a client may send that it should not: the right answer, and others are not disturbed."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.front import WEB, front
from gateway.server import models, rest

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with models("a") as (_, urls), front(urls, seconds=0.5, body="1MiB") as (_, made):
        yield made


def dialled(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5)


DEEP = b'{"model": "m", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"model": "\xff"}', "not JSON"),
        (b"[]", "not a request"),
        (b"null", "not a request"),
        (b'"m"', "not a request"),
        (b"{}", "`model`"),
        (b'{"model": 5}', "$.model"),
        (b'{"model": ""}', "`model` is empty"),
        (b'{"model": "m", "stream": "yes"}', "$.stream"),
        (b'{"model": "m", "prompt": NaN}', "not JSON"),
        (DEEP, "too deep"),
        (b"[" * 500_000, "not a request"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(url: str, body: bytes, says: str) -> None:
    answer = WEB.post(f"{url}/v1/chat/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/", 404),
        ("DELETE", "/v1/models/m", 405),
    ],
)
def test_what_is_not_there_is_told(url: str, method: str, path: str, status: int) -> None:
    answer = WEB.request(method, url + path, content=b"{}")
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_model_that_is_not_there_names_those_that_are(url: str) -> None:
    answer = WEB.post(f"{url}/v1/completions", json={"model": "gpt", "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": "The model `gpt` does not exist here. There are `m`",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("said", ["soon", "-1", "0", "nan", "1e99", ""])
def test_a_time_that_is_none_is_refused(url: str, said: str) -> None:
    headers = {"x-request-timeout-seconds": said}
    answer = WEB.post(f"{url}/v1/completions", json={"model": "m"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-timeout-seconds")


def test_a_lane_that_there_is_not_is_refused(url: str) -> None:
    for lane, status in (("fast", 400), ("deferred", 200)):
        answer = WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, headers={"x-poise-lane": lane})
        assert answer.status_code == status, answer.text


def test_a_large_body_is_refused_before_it_is_sent(url: str) -> None:
    with dialled(url) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
        came = connection.recv(65536)
    assert came.startswith(b"HTTP/1.1 413 ")
    assert b"1 MiB" in came


def test_a_body_without_a_length_is_bounded(url: str) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    answer = WEB.post(f"{url}/v1/completions", content=parts())
    assert answer.status_code == 413


def test_a_request_that_does_not_end_is_ended(url: str) -> None:
    heads = (
        b"",
        b"POST /v1/completions HTTP/1.1\r\nhost:",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    )
    began = time.monotonic()
    halves = [dialled(url) for _ in heads]
    for half, head in zip(halves, heads, strict=True):
        half.sendall(head)
    for half in halves:
        rest(half)
        half.close()
    assert 0.4 < time.monotonic() - began < 2


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"x-%d: 1\r\n" % number for number in range(1000)),
        b"x: " + b"y" * MEGABYTE + b"\r\n",
        b"x" * MEGABYTE + b": y\r\n",
    ],
    ids=["many", "a long one", "a long name"],
)
def test_a_flood_of_headers_is_refused(url: str, headers: bytes) -> None:
    with dialled(url) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"GET /v1/models HTTP/1.1\r\n" + headers + b"\r\n")
        came = rest(connection)
    assert not came or came[8:13] == b" 431 "


def test_others_are_not_disturbed(url: str) -> None:
    """By 200 connections that say half of a request, and by large bodies."""
    halves: list[Any] = [dialled(url) for _ in range(200)]
    for half in halves:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 900000\r\n\r\n{")
    began = time.monotonic()
    for _ in range(10):
        assert WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}).status_code == 200
    assert time.monotonic() - began < 2
    for half in halves:
        half.close()
