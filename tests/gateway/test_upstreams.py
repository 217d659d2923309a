"""A front before servers that do what they are told: slow, failing, dying, cut short; and clients that do as well."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.front import EJECTS, WEB, client, front
from gateway.server import SOON, models, rest, until
from poise.errors import SpecError


def ask(url: str, **more: Any) -> httpx.Response:
    return WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"} | more, timeout=SOON)


@contextlib.contextmanager
def asking(url: str, count: int, **more: Any) -> Iterator[list[httpx.Response]]:
    """So many requests beside each other, each with its prompt; their answers, once it is left."""
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(ask(url, **{"prompt": str(number)} | more)))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join()


def events(port: int, size: int = 4096) -> socket.socket:
    """A client that asked for a stream and has read nothing yet."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    made.connect(("127.0.0.1", port))
    body = b'{"model": "m", "prompt": "x", "stream": true}'
    made.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    return made


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


# What is passed on


def test_each_upstream_gets_its_share_and_says_who_it_was() -> None:
    with models("a", "b") as (_, urls), front(urls) as (_, url):
        names = [ask(url).headers["x-poise-upstream"] for _ in range(6)]
    assert sorted(names) == ["u0"] * 3 + ["u1"] * 3


def test_the_body_is_passed_on_as_it_came() -> None:
    said = b'{"prompt":  "\xc3\xa4", "model": "m", "of my own": {"deep": [1, 2.50]}}'
    with models("a") as ((a,), urls), front(urls) as (_, url):
        WEB.post(f"{url}/v1/completions?debug=1", content=said)
        assert a.headers[0]["content-length"] == str(len(said))
        assert a.asked[0]["of my own"] == {"deep": [1, 2.5]}


def test_the_answer_is_passed_on_as_it_came() -> None:
    with models("a") as (_, urls), front(urls) as (_, url):
        for stream in (False, True):
            ours, theirs = ask(url, stream=stream), ask(urls[0], stream=stream)
            assert ours.content == theirs.content
            assert ours.headers["content-type"] == theirs.headers["content-type"]


@contextlib.contextmanager
def raw_server(answer: bytes, host: str = "127.0.0.1") -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each request with these bytes, on a connection of its own: its URL, and the requests."""
    seen: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with listening.accept()[0] as connection:
                    seen.append(connection.recv(65_536))
                    connection.sendall(answer)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        yield f"[{host}]:{listening.getsockname()[1]}" if ":" in host else f"{host}:{listening.getsockname()[1]}", seen


def test_headers_are_passed_on_but_for_those_that_cannot_be_sent() -> None:
    head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-name: Zürich\r\nx-odd: a\x01b\r\nconnection: close\r\n\r\n{}"
    with raw_server(head.encode()) as (server, _), front([server], each={"models": ["m"]}) as (_, url):
        answer = ask(url)
    assert answer.status_code == 200
    assert (b"x-name", "Zürich".encode()) in answer.headers.raw
    assert "x-odd" not in answer.headers


def test_headers_of_a_connection_end_at_the_front() -> None:
    of_it = {"x-hop": "1", "keep-alive": "timeout=9", "te": "trailers", "trailer": "x-sum", "upgrade": "h2c"}
    of_it |= {"proxy-connection": "close", "proxy-authenticate": "Basic", "proxy-authorization": "Basic eA=="}
    said = of_it | {"connection": "close, X-Hop, te", "x-end": "2"}
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    answer = f"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{head}\r\n{{}}".encode()
    with raw_server(answer) as (server, seen), front([server], each={"models": ["m"]}) as (_, url):
        answered = WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, headers=said).headers
    asked = next(one for one in seen if one.startswith(b"POST")).lower()
    assert answered["x-end"] == "2" and b"\r\nx-end: 2\r\n" in asked
    assert [name for name in of_it if name in answered or f"\r\n{name}:".encode() in asked] == []


def test_a_server_at_an_address_of_ipv6_gets_its_host_as_the_standard_says() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    with raw_server(whole, "::1") as (server, seen), front([server], each={"models": ["m"]}) as (_, url):
        assert ask(url).status_code == 200
    assert all(f"\r\nhost: {server}\r\n".encode() in request for request in seen)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", "/v1/models answers 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}", "/v1/models lists none"),
        (b"", "ServerDisconnectedError"),
    ],
)
def test_a_refusal_tells_why_the_probes_of_a_server_fail(answer: bytes, why: str) -> None:
    with raw_server(answer) as (server, _), front([server], hold="0s") as (_, url):
        assert f"`u0` is starting ({why})" in ask(url).json()["error"]["message"]


def test_the_key_of_an_upstream_takes_the_place_of_the_clients() -> None:
    with models("a", "b") as (both, urls):
        with front(urls[:1], keys={"A_KEY": "sk-of-a"}, each={"key_from": "A_KEY"}) as (_, url):
            client(url).completions.create(model="m", prompt="x")
        with front(urls[1:]) as (_, url):
            client(url).completions.create(model="m", prompt="x")
        assert both[0].headers[0]["authorization"] == "Bearer sk-of-a"
        assert "authorization" not in both[1].headers[0]
        with pytest.raises(SpecError, match="not set"), front(urls[:1], each={"key_from": "A_KEY"}):
            pass


@pytest.mark.timed
def test_words_of_a_stream_come_when_they_are_said() -> None:
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.words, a.pause = 4, 0.1
        came = [time.monotonic() for _ in client(url).completions.create(model="m", prompt="x", stream=True)]
    assert all(later - earlier > 0.05 for earlier, later in pairwise(came))


def test_models_are_found_without_being_told() -> None:
    with models("a", "b") as ((a, b), urls):
        a.models, b.models = ("small", "both"), ("large", "both")
        with front(urls) as (_, url):
            assert [model.id for model in client(url).models.list()] == ["small", "both", "large"]
            assert client(url).completions.create(model="large", prompt="x").system_fingerprint == "b"
            a.models = ("new",)
            until(lambda: "new" in WEB.get(f"{url}/v1/models").text)
            assert client(url).models.retrieve("both").owned_by == "b"


# What fails on the way


SELDOM = {"every": "1m", "timeout": "1s"}


@contextlib.contextmanager
def killable(seconds: float, port: int = 0) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server that is a process, and its address. Its answers take these seconds."""
    program = [sys.executable, "-m", "gateway.server", "dying", str(seconds), str(port)]
    made = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    try:
        assert made.stdout is not None
        yield made, made.stdout.readline().strip()
    finally:
        made.kill()
        made.communicate()


def test_what_was_killed_before_it_answered_is_asked_elsewhere() -> None:
    with models("a") as ((a,), urls):
        a.wait = 0.5
        with killable(60) as (dying, address), front([address, *urls], health=SELDOM) as (app, url):
            with asking(url, 4) as answers:
                until(lambda: app.metric("vllm:num_requests_running", server="u0") == 2)
                dying.kill()
            assert [answer.status_code for answer in answers] == [200] * 4
            assert {answer.headers["x-poise-upstream"] for answer in answers} == {"u1"}
            assert app.metric("poise_upstream_retries_total", server="u0", reason="connection") == 2
            assert app.metric("poise_upstream_ejected", server="u0") == 1
            assert ask(url).status_code == 200


def test_a_connection_that_the_server_closes_unread_costs_no_request() -> None:
    """A server may close an idle connection at the moment at which the next request is sent on it."""
    body = b'{"object": "list", "data": [{"id": "m"}]}'
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    seen: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            while not any(one.startswith(b"POST") for one in seen):  # probes come first
                seen.append(connection.recv(65_536))
                connection.sendall(whole)
            connection.recv(1)  # of the next request; the rest stays unread
        connection, _ = listening.accept()
        with connection:
            while request := connection.recv(65_536):
                seen.append(request)
                connection.sendall(whole)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        with front([f"127.0.0.1:{listening.getsockname()[1]}"], health={"every": "1h"}) as (app, url):
            assert [ask(url).status_code for _ in range(3)] == [200] * 3
            assert sum(one.startswith(b"POST") for one in seen) == 3
            assert app.metric("poise_upstream_retries_total", server="u0", reason="connection") == 0


def test_while_all_servers_are_dead_requests_wait_and_those_that_were_lost_are_asked_again() -> None:
    with contextlib.ExitStack() as stack:
        (busy, first), (idle, second) = (stack.enter_context(killable(60)) for _ in range(2))
        app, url = stack.enter_context(front([first, second], health=SELDOM, hold="30s"))
        idle.kill()
        idle.wait()
        with asking(url, 4) as answers:
            until(lambda: app.metric("vllm:num_requests_running", server="u0") == 4)
            busy.kill()
            with asking(url, 4) as later:
                until(lambda: app.metric("vllm:num_requests_waiting", model="m") == 8)
                with pytest.raises(httpx.ReadTimeout):
                    WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=0.2)
                until(lambda: app.metric("vllm:num_requests_waiting", model="m") == 8)
                stack.enter_context(killable(0, port_of(second)))
        assert [answer.status_code for answer in answers + later] == [200] * 8
        assert {answer.headers["x-poise-upstream"] for answer in answers + later} == {"u1"}
        assert app.metric("poise_upstream_requests_held_total", model="m") == 9
        assert app.metric("vllm:request_errors_total", server="", model="m", error_type="unavailable") == 0


def test_a_prompt_that_kills_its_server_kills_two_and_is_refused_from_then_on() -> None:
    with models("a", "b", "c") as (all_of_them, urls), front(urls) as (_, url):
        for model in all_of_them:
            model.dies_of = "kill"
        lost = ask(url, prompt="kill")
        assert lost.status_code == 502 and lost.headers["x-should-retry"] == "false"
        assert "as another was before with this prompt; it is refused for 1m0s" in lost.text
        held = ask(url, prompt="kill", max_tokens=3)
        assert held.status_code == 422 and held.headers["x-should-retry"] == "false"
        assert held.json()["error"]["code"] == "quarantined"
        assert 0 < int(held.headers["retry-after"]) <= 60
        with pytest.raises(openai.UnprocessableEntityError):  # its own retries are two
            client(url, max_retries=2).completions.create(model="m", prompt="kill")
        assert sum(len(model.asked) for model in all_of_them) == 2
        assert ask(url).status_code == 200


def test_a_prompt_that_kills_the_only_server_is_sent_to_it_twice() -> None:
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.dies_of = "kill"
        lost = ask(url, prompt="kill")
        assert lost.status_code == 502 and lost.headers["x-should-retry"] == "false"
        assert ask(url, prompt="kill").status_code == 422
        assert len(a.asked) == 2


@pytest.mark.parametrize("more", [{"background": True}, {"conversation": "c1"}])
def test_a_request_that_the_server_keeps_is_not_repeated_after_a_loss(more: dict[str, Any]) -> None:
    with models("a", "b") as (both, urls), front(urls) as (_, url):
        for model in both:
            model.dies_of = "kill"
        body = {"model": "m", "input": "x", "prompt": "kill"} | more
        lost = WEB.post(f"{url}/v1/responses", json=body)
        assert lost.status_code == 502 and lost.headers["x-should-retry"] == "false"
        assert "may have carried it out" in lost.text
        assert sum(len(model.asked) for model in both) == 1


def test_a_prompt_that_two_servers_died_of_is_asked_of_no_more_even_if_one_of_them_was_behind_a_proxy() -> None:
    with models("a", "b", "c") as (all_of_them, urls), front(urls) as (_, url):
        for model in all_of_them:
            model.status = 502
        assert ask(url).status_code == 502
        assert sum(len(model.asked) for model in all_of_them) == 2


@pytest.mark.parametrize("status", [429, 502, 503])
def test_what_an_upstream_refuses_is_asked_elsewhere(status: int) -> None:
    with models("a", "b") as ((a, _), urls), front(urls) as (app, url):
        a.status, a.retry_after = status, "5"
        assert [ask(url).status_code for _ in range(6)] == [200] * 6
        retries = app.metric("poise_upstream_retries_total", server="u0", reason=str(status))
        assert retries == (1 if status != 502 else 2)  # told to come back later, it is left alone; or it is ejected


@pytest.mark.parametrize("status", [401, 403, 404])
def test_one_that_does_not_take_our_key_or_has_not_the_model_is_ejected_and_no_client_sees_it(status: int) -> None:
    """It refuses at once, and would look idle for ever. The budget is for what loads a fleet."""
    with models("a", "b", "c") as ((a, _, _), urls), front(urls, retries={"share": "0%"}) as (app, url):
        a.status = status
        assert [ask(url).status_code for _ in range(12)] == [200] * 12
        assert len(a.asked) == 2, "the failures after which it is ejected"
        assert app.metric("poise_upstream_ejected", server="u0") == 1
        a.status = 200
        until(lambda: ask(url).headers["x-poise-upstream"] == "u0")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_every_upstream_refuses_is_the_requests_own_fault_and_ejects_none(status: int) -> None:
    with models("a", "b", "c") as (all_of_them, urls), front(urls) as (app, url):
        for model in all_of_them:
            model.status = status
        assert [ask(url).status_code for _ in range(6)] == [status] * 6
        assert sum(app.metric("poise_upstream_ejections_total", server=f"u{place}") for place in range(3)) == 0
        for model in all_of_them:
            model.status = 200
        assert {ask(url).headers["x-poise-upstream"] for _ in range(3)} == {"u0", "u1", "u2"}


def test_what_the_only_one_that_has_a_model_refuses_is_the_clients_to_see() -> None:
    with models("a", "b") as ((a, b), urls):
        a.models, b.models, a.status = ("m",), ("other",), 404
        with front(urls) as (app, url):
            assert [ask(url).status_code for _ in range(6)] == [404] * 6
            assert app.metric("poise_upstream_ejections_total", server="u0") == 0


def test_other_errors_are_the_clients_to_see() -> None:
    with models("a", "b") as ((a, b), urls), front(urls) as (app, url):
        a.status = b.status = 400
        assert "is told to fail" in ask(url).json()["error"]["message"]
        assert len(a.asked) + len(b.asked) == 1
        assert sum(app.metric("poise_upstream_ejected", server=name) for name in ("u0", "u1")) == 0


def test_tries_again_are_bounded_by_a_budget() -> None:
    with models("a", "b") as (both, urls), front(urls, retries={"share": "0%"}) as (_, url):
        for one in both:
            one.status = 502
        assert [ask(url).status_code for _ in range(4)] == [502] * 4
        assert sum(len(one.asked) for one in both) == 4


def test_a_stream_that_is_cut_says_so() -> None:
    with models("a") as ((a,), urls), front(urls) as (app, url):
        a.cut_after = 3
        words: list[str] = []
        with pytest.raises(openai.APIError, match="lost in the middle") as raised:
            stream = client(url).completions.create(model="m", prompt="x", stream=True)
            words.extend(event.choices[0].text for event in stream)
        assert raised.value.code == "cut"
        assert words == ["0 ", "1 ", "2 "]
        assert app.metric("vllm:request_errors_total", server="u0", model="m", error_type="cut") == 1
        assert len(a.asked) == 1


def test_a_stream_that_is_cut_within_an_event_ends_its_connection() -> None:
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.cut_after, a.in_event = 3, True
        with pytest.raises(httpx.RemoteProtocolError):
            ask(url, stream=True)


def test_one_that_fails_is_ejected_and_comes_back() -> None:
    with models("a", "b") as ((a, _), urls), front(urls) as (app, url):
        a.status = 500
        statuses = [ask(url).status_code for _ in range(10)]
        assert statuses.count(500) == 2  # the failures after which it is ejected
        assert statuses[-5:] == [200] * 5
        assert app.metric("poise_upstream_ejections_total", server="u0") == 1
        a.status = 200
        until(lambda: ask(url).headers["x-poise-upstream"] == "u0")
        assert app.metric("poise_upstream_ejected", server="u0") == 0


def test_one_that_has_become_slow_is_ejected_and_comes_back() -> None:
    with models("a", "b") as ((a, _), urls), front(urls, ejection=EJECTS | {"slower": 5}) as (app, url):
        for _ in range(4):
            ask(url)
        a.wait = 0.3
        for _ in range(4):
            ask(url)
        assert app.metric("poise_upstream_ejected", server="u0") == 1
        assert {ask(url).headers["x-poise-upstream"] for _ in range(4)} == {"u1"}
        a.wait = 0
        until(lambda: ask(url).headers["x-poise-upstream"] == "u0")


def test_one_that_hangs_is_found_by_clients_of_any_patience() -> None:
    """Its probes go well, and no client waits for as long as the front would."""
    with models("a", "b") as ((a, _), urls), front(urls, ejection=EJECTS | {"slower": 5}) as (app, url):
        for _ in range(4):
            ask(url)
        a.wait = 60
        for _ in range(4):
            with contextlib.suppress(httpx.ReadTimeout):
                WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=0.3)
        until(lambda: app.metric("poise_upstream_ejected", server="u0") == 1)
        assert {ask(url).headers["x-poise-upstream"] for _ in range(4)} == {"u1"}


def test_the_last_one_is_not_ejected() -> None:
    with models("a") as ((a,), urls), front(urls) as (app, url):
        a.status = 500
        assert [ask(url).status_code for _ in range(6)] == [500] * 6
        a.status = 200
        assert ask(url).status_code == 200
        assert app.metric("poise_upstream_ejections_total", server="u0") == 0


def test_one_that_is_not_well_gets_nothing_until_it_is() -> None:
    with models("a", "b") as ((a, _), urls), front(urls) as (app, url):
        a.well = False
        until(lambda: app.metric("vllm:healthy_pods_total", server="u0") == 0)
        assert {ask(url).headers["x-poise-upstream"] for _ in range(4)} == {"u1"}
        a.well = True
        until(lambda: app.metric("vllm:healthy_pods_total", server="u0") == 1)
        assert "u0" in {ask(url).headers["x-poise-upstream"] for _ in range(4)}


def test_nobody_there_is_told_at_once_if_nothing_may_wait() -> None:
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    with front([f"http://127.0.0.1:{nobody.getsockname()[1]}"], each={"models": ["m"]}, hold=0) as (_, url):
        began = time.monotonic()
        answer = ask(url)
        assert time.monotonic() - began < 0.5
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "`u0` is" in answer.json()["error"]["message"]


# Too much, too late


@pytest.mark.timed
def test_what_is_too_much_is_refused_at_once() -> None:
    with models("a") as ((a,), urls), front(urls, each={"limit": 2}, queue=2) as (app, url):
        a.wait = 0.3
        with asking(url, 4) as answers:
            until(lambda: app.metric("vllm:num_requests_waiting", model="m") == 2)
            with httpx.Client() as kept:
                took = []
                for _ in range(5):
                    began = time.monotonic()
                    refused = kept.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"})
                    took.append(time.monotonic() - began)
                    assert refused.status_code == 429
                    assert refused.json()["error"]["code"] == "overloaded"
                    assert int(refused.headers["retry-after"]) >= 1
            assert sorted(took)[2] < 0.05
        assert [answer.status_code for answer in answers] == [200] * 4
        assert app.metric("vllm:request_errors_total", server="", model="m", error_type="overloaded") == 5


def test_bodies_are_bounded_together() -> None:
    with models("a") as ((a,), urls), front(urls, bodies="1MiB") as (_, url):
        a.wait = 1.0
        with asking(url, 1, padding="x" * 400_000) as answers:
            until(lambda: a.running == 1)
            refused = ask(url, padding="x" * 400_000)  # of the same client, which has its share
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert ask(url).status_code == 200
        assert [answer.status_code for answer in answers] == [200]
        assert ask(url, padding="x" * 400_000).status_code == 200


def test_who_came_first_is_served_first() -> None:
    order: list[int] = []

    def one(place: int) -> None:
        ask(url)
        order.append(place)

    with models("a") as ((a,), urls), front(urls, each={"limit": 1}) as (app, url):
        a.wait = 0.05
        threads = [threading.Thread(target=one, args=(place,)) for place in range(5)]
        for place, thread in enumerate(threads):
            thread.start()
            until(lambda: len(a.asked) + app.metric("vllm:num_requests_waiting", model="m") > place)  # noqa: B023
        for thread in threads:
            thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_the_time_out_is_told_and_counts_as_a_failure() -> None:
    with models("a", "b") as ((a, _), urls), front(urls, timeout="200ms") as (app, url):
        a.wait = 10
        statuses = [ask(url).status_code for _ in range(4)]
        assert sorted(statuses) == [200, 200, 504, 504]
        assert app.metric("poise_upstream_ejected", server="u0") == 1
        until(lambda: a.gone == 2)


@pytest.mark.parametrize(
    "header",
    [
        {"x-request-timeout-seconds": "0.1"},
        {"x-envoy-upstream-rq-timeout-ms": "100"},
        {"x-stainless-read-timeout": "0.1"},
    ],
)
def test_a_clients_patience_is_kept_to_and_blames_nobody(header: dict[str, str]) -> None:
    with models("a", "b") as (both, urls), front(urls) as (app, url):
        for one in both:
            one.wait = 10
        for _ in range(4):
            began = time.monotonic()
            answer = WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, headers=header)
            assert answer.status_code == 504
            assert 0.1 <= time.monotonic() - began < 1
        if "x-stainless-read-timeout" not in header:
            assert float(both[0].headers[0]["x-request-timeout-seconds"]) <= 0.1
        assert sum(app.metric("poise_upstream_ejected", server=name) for name in ("u0", "u1")) == 0


def test_a_stream_may_take_longer_than_its_first_word() -> None:
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.words, a.pause = 6, 0.05
        events = list(client(url, timeout=0.2).completions.create(model="m", prompt="x", stream=True))
        assert len(events) == 6


def test_answers_later_than_the_objective_are_counted() -> None:
    with models("a") as ((a,), urls), front(urls, objective={"latency_p99": "50ms"}) as (app, url):
        ask(url)
        a.wait = 0.1
        ask(url)
        assert app.metric("poise_objective_missed_total", model="m") == 1


# Clients


@pytest.mark.timed
def test_who_hangs_up_ends_the_work_for_it() -> None:
    with models("a") as ((a,), urls), front(urls) as (app, url):
        a.words, a.pause = 1000, 0.05
        stream = client(url).completions.create(model="m", prompt="x", stream=True)
        next(iter(stream))
        stream.close()
        began = time.monotonic()
        until(lambda: a.gone == 1)
        assert time.monotonic() - began < 1
        assert app.metric("vllm:request_errors_total", server="u0", model="m", error_type="gone") == 1
        assert app.metric("vllm:num_requests_running", server="u0") == 0


def test_who_hangs_up_while_it_waits_gives_its_turn_up() -> None:
    with models("a") as ((a,), urls), front(urls, each={"limit": 1}) as (app, url):
        a.wait = 0.2
        with asking(url, 1):
            until(lambda: a.running == 1)
            waiting = events(port_of(url))
            until(lambda: app.metric("vllm:num_requests_waiting", model="m") == 1)
            waiting.close()
            until(lambda: app.metric("vllm:num_requests_waiting", model="m") == 0)
            assert ask(url).status_code == 200
        assert len(a.asked) == 2


def test_who_reads_nothing_is_dropped() -> None:
    with models("a") as ((a,), urls), front(urls, stalled="200ms") as (app, url):
        a.words, a.padding = 100_000, "x" * 1_000_000
        slow = events(port_of(url))
        until(lambda: a.running == 1)
        until(lambda: a.gone == 1)
        assert app.metric("vllm:request_errors_total", server="u0", model="m", error_type="stalled") == 1
        assert ask(url, stream=False).status_code == 200
        assert not rest(slow).endswith(b"0\r\n\r\n")


def test_stopping_lets_those_finish_that_run() -> None:
    with models("a") as ((a,), urls), front(urls) as (app, url):
        a.wait = 0.3
        with asking(url, 2) as answers:
            until(lambda: a.running == 2)
            stopping = app.stop()
            refused = ask(url)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert [answer.status_code for answer in answers] == [200, 200]
        stopping.result(1)


def test_stopping_does_not_wait_for_ever() -> None:
    with models("a") as ((a,), urls), front(urls, drain="100ms") as (app, url):
        a.wait = 10
        with asking(url, 1) as answers:
            until(lambda: a.running == 1)
            app.stop().result(1)
        assert [answer.json()["error"]["message"] for answer in answers] == ["This front is being stopped"]
        until(lambda: a.gone == 1)


# How many at once


def test_an_upstream_gets_as_many_at_once_as_it_answers_in_time() -> None:
    """Of two slots, 50 ms each: with 24 at once answers would take 600 ms, and with eight 200 ms."""
    rules = {"limit": 64, "concurrency": {"target_p99": "200ms", "min": 4}}
    with models("a") as ((a,), urls), front(urls, each=rules) as (app, url):
        a.wait, a.slots = 0.05, 2
        over = time.monotonic() + 5

        def asks() -> None:
            while time.monotonic() < over:
                assert ask(url).status_code == 200

        threads = [threading.Thread(target=asks) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 4 <= app.metric("poise_upstream_limit", server="u0") <= 12, (
            "all 24 would fit within the limit that it had"
        )
        assert app.metric("poise_upstream_p99_seconds", server="u0") > 0.1
