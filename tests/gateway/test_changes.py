"""A front that is changed while requests run: no request may notice."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest

from gateway.front import WEB, client, front
from gateway.server import models, until
from poise.errors import SpecError


def ask(url: str, model: str = "m", **more: object) -> httpx.Response:
    return WEB.post(f"{url}/v1/completions", json={"model": model, "prompt": "x"} | more)


@contextmanager
def load(url: str) -> Iterator[Counter[tuple[int, str]]]:
    """Four clients that ask one request after the other; the answers by status and server, once it is left."""
    answers: Counter[tuple[int, str]] = Counter()
    over = threading.Event()

    def go_on() -> None:
        with httpx.Client(timeout=10.0) as web:
            while not over.is_set():
                answer = web.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"})
                answers[answer.status_code, answer.headers.get("x-poise-upstream", "")] += 1

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join()


def named(urls: list[str], *names: str, **more: object) -> list[dict[str, object]]:
    return [{"name": name, "url": url} | more for name, url in zip(names, urls, strict=True)]


def test_upstreams_are_replaced_while_requests_run() -> None:
    with models("a", "b", "c") as ((a, b, c), urls):
        for one in (a, b, c):
            one.wait = 0.01
        with front(urls[:1]) as (app, url), load(url) as answers:
            until(lambda: answers[200, "u0"] > 5)
            app.change(upstreams=named(urls[1:], "u1", "u2"))
            until(lambda: answers[200, "u1"] > 5 and answers[200, "u2"] > 5)
            before = len(a.asked)
            app.change(upstreams=named([urls[0], urls[2]], "u1", "u2"))  # u1 is another server now
            until(lambda: len(a.asked) > before + 5)
        assert {status for status, _ in answers} == {200}


def test_a_removed_upstream_answers_what_it_has_and_can_come_back_meanwhile() -> None:
    with models("a", "b") as ((a, _), urls), front(urls) as (app, url):
        a.go.clear()
        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(ask(url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: a.running > 0)
        app.change(upstreams=named(urls[1:], "u1"))
        assert [(one.name, one.state) for one in app.upstreams.states] == [("u0", "leaving"), ("u1", "healthy")]
        app.change(upstreams=named(urls, "u0", "u1"))
        a.go.set()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {ask(url).headers["x-poise-upstream"] for _ in range(4)} == {"u0", "u1"}
        app.change(upstreams=named(urls[1:], "u1"))
        assert [one.name for one in app.upstreams.states] == ["u1"]
        assert 'server="u0"' not in "\n".join(
            line for line in WEB.get(f"{url}/metrics").text.splitlines() if line.startswith("vllm:healthy")
        )


def test_a_drained_upstream_gets_nothing_until_it_is_taken_back() -> None:
    with models("a", "b") as (_, urls), front(urls) as (app, url):
        app.call(lambda: app.upstreams.drain("u0", draining=True))
        assert {ask(url).headers["x-poise-upstream"] for _ in range(4)} == {"u1"}
        app.change(queue=9)
        assert app.upstreams.states[0].state == "draining", "another change does not take it back"
        app.call(lambda: app.upstreams.drain("u1", draining=True))
        assert ask(url).status_code == 503 and "`u0` is draining" in ask(url).text
        app.call(lambda: app.upstreams.drain("u0", draining=False))
        assert ask(url).headers["x-poise-upstream"] == "u0"


def test_limits_and_rules_are_those_of_the_latest_change() -> None:
    with models("a") as ((a,), urls), front(urls) as (app, url):
        app.change(upstreams=named(urls, "u0", limit=1), queue=0)
        a.go.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, url)
            until(lambda: a.running == 1)
            assert ask(url).status_code == 429
            a.go.set()
            assert first.result().status_code == 200
        app.change(upstreams=named(urls, "u0", limit=8), queue=8)
        assert _at_once(url, 3) == [200] * 3
        app.change(timeout="50ms")
        a.go.clear()
        assert ask(url).status_code == 504
        a.go.set()


def _at_once(url: str, count: int) -> list[int]:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(ask(url).status_code)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    with models("a", "b") as (_, urls), front(urls[:1]) as (app, url):
        with pytest.raises(SpecError, match="not set"):
            app.change(upstreams=named(urls, "u0", "u1", key_from="NO_SUCH_KEY"))
        assert ask(url).headers["x-poise-upstream"] == "u0" and len(app.upstreams.states) == 1


# Names of models


def test_an_alias_is_the_name_of_another_model() -> None:
    with models("a") as ((a,), urls), front(urls, aliases={"gpt-4o": "m"}) as (_, url):
        answer = ask(url, "gpt-4o", kept=[1, 2.50])
        assert answer.headers["x-poise-model"] == "m" and a.asked[0] == {"model": "m", "prompt": "x", "kept": [1, 2.5]}
        assert "x-poise-model" not in ask(url).headers
        assert [model.id for model in client(url).models.list()] == ["m", "gpt-4o"]


def test_an_alias_splits_requests_and_is_moved_by_a_change() -> None:
    with models("a", "b") as ((a, b), urls):
        a.models, b.models = ("v1",), ("v2",)
        with front(urls, aliases={"chat": {"v1": "75%", "v2": "25%"}}) as (app, url):
            assert Counter(ask(url, "chat").headers["x-poise-model"] for _ in range(8)) == {"v1": 6, "v2": 2}
            app.change(aliases={"chat": "v2"})
            assert {ask(url, "chat").headers["x-poise-model"] for _ in range(4)} == {"v2"}
            app.change(aliases={"v1": {"v1": "50%", "v2": "50%"}})
            assert Counter(ask(url, "v1").headers["x-poise-upstream"] for _ in range(4)) == {"u0": 2, "u1": 2}
            with pytest.raises(openai.NotFoundError):
                client(url).completions.create(model="chat", prompt="x")


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_fallback_answers_while_a_model_refuses(status: int) -> None:
    with models("a", "b") as ((a, b), urls):
        a.models, b.models, a.status = ("large",), ("small",), status
        with front(urls, fallbacks={"large": ["none", "small"]}) as (app, url):
            answer = ask(url, "large")
            assert answer.status_code == 200 and answer.headers["x-poise-model"] == "small"
            assert b.asked[0]["model"] == "small"
            assert app.metric("poise_model_fallbacks_total", model="large", fallback="none", reason=str(status)) == 1
            a.status = 200
            until(lambda: "x-poise-model" not in ask(url, "large").headers)
            a.status = 400
            assert ask(url, "large").status_code == 400, "what is wrong with the request is the client's to see"


def test_a_fallback_answers_while_a_model_is_down_and_its_errors_are_told() -> None:
    with models("a", "b") as ((a, b), urls):
        a.models, b.models = ("large",), ("small",)
        with front(urls, fallbacks={"large": ["small"]}) as (app, url):
            a.well = False
            until(lambda: app.metric("vllm:healthy_pods_total", server="u0") == 0)
            assert ask(url, "large").headers["x-poise-model"] == "small"
            b.status = 503
            assert ask(url, "large").status_code == 503


def test_a_model_without_any_upstream_may_have_fallbacks() -> None:
    with models("a") as (_, urls), front(urls, fallbacks={"gpt-4o": ["m"]}) as (_, url):
        assert ask(url, "gpt-4o").headers["x-poise-model"] == "m"
        assert ask(url, "gpt-5").status_code == 404


def test_a_prompt_that_killed_two_servers_kills_none_of_a_fallback() -> None:
    with models("a", "b", "c") as (all_of_them, urls):
        for model, serves in zip(all_of_them, ("large", "large", "small"), strict=True):
            model.models, model.dies_of = (serves,), "kill"
        with front(urls, fallbacks={"large": ["small"]}) as (_, url):
            assert ask(url, "large", prompt="kill").status_code == 502
            assert not all_of_them[2].asked


def test_a_backup_tier_gets_requests_only_while_the_first_is_full_or_down() -> None:
    with models("a", "b") as ((a, _), urls):
        upstreams = [
            {"name": "first", "url": urls[0], "limit": 2},
            {"name": "backup", "url": urls[1], "limit": 2, "tier": 1},
        ]
        with front([], upstreams=upstreams) as (app, url):
            assert {ask(url).headers["x-poise-upstream"] for _ in range(6)} == {"first"}
            a.go.clear()
            with ThreadPoolExecutor(2) as pool:
                first = [pool.submit(ask, url) for _ in range(2)]
                until(lambda: a.running == 2)
                assert ask(url).headers["x-poise-upstream"] == "backup", "the first is full"
                a.go.set()
                assert {one.result().headers["x-poise-upstream"] for one in first} == {"first"}
            a.status = 503
            assert ask(url).headers["x-poise-upstream"] == "backup"
            a.status, a.well = 200, False
            until(lambda: app.metric("vllm:healthy_pods_total", server="first") == 0)
            assert ask(url).headers["x-poise-upstream"] == "backup"
