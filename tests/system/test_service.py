"""`poise service`: a running gateway is changed, and no client notices; what was changed survives."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from gateway.server import Model
from gateway.server import Serving as Upstream

from system.living import Living, free_port, until
from system.serving import Serving

MODELS = """
class Twice:
    def predict(self, batch: list[float]) -> list[float]:
        return [2 * one for one in batch]

class Thrice:
    def predict(self, batch: list[float]) -> list[float]:
        return [3 * one for one in batch]

class Never:
    def load(self):
        raise RuntimeError("no weights here")

    def predict(self, batch):
        return batch
"""


def service(name: str = "times", model: str = "Twice", **more: Any) -> str:
    document = {"kind": "service", "name": name, "model": f"models.py:{model}", "resources": {"cpu": "100m"}}
    same_code = {"env": {"PYTHONPATH": os.environ["PYTHONPATH"]}} if "PYTHONPATH" in os.environ else {}
    return json.dumps(document | same_code | more)


def upstreams(*urls: str, **more: Any) -> str:
    listed = [{"name": f"u{place}", "url": url} for place, url in enumerate(urls)]
    return json.dumps({"kind": "upstreams", "upstreams": listed} | more)


FILES = {"models.py": MODELS, "service.json": service()}


@contextmanager
def asking(
    serving: Serving, path: str = "/predict/times", body: bytes = b"2", **headers: str
) -> Iterator[list[tuple[int, bytes]]]:
    """Three clients that ask again and again, and their answers."""
    over, answers = threading.Event(), list[tuple[int, bytes]]()

    def ask() -> None:
        connection = serving.connection()
        while not over.wait(0.01):  # else what is started meanwhile waits for the processor
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
        connection.close()

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(ask) for _ in range(3)]
        try:
            yield answers
        finally:
            over.set()
    for client in clients:
        client.result()


def change(home: Living, *arguments: str, **files: str) -> Any:
    """The value of `poise service …`, after these files were written."""
    for name, text in files.items():
        home.file(f"{name}.json", text)
    done = home.poise("service", *arguments, "--json")
    assert done.code == 0, done.err + done.text
    return done.value


def listed(home: Living) -> dict[str, Any]:
    return dict(change(home, "list"))


@pytest.fixture(scope="module")
def gateway(home: Living) -> Iterator[Serving]:
    serving = Serving(home, "service.json")
    yield serving
    assert serving.end() == 0


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateway is shared by the tests of this file."""


def test_another_version_takes_over_while_nobody_notices(home: Living, gateway: Serving) -> None:
    with asking(gateway) as answers:
        until(lambda: len(answers) > 5, "it answers")
        told = change(home, "apply", "next.json", next=service(model="Thrice"))
        assert [one["at"] for one in told["changes"]] == ["service times.model"]
        asked = len(answers)
        until(lambda: len(answers) > asked + 5, "it goes on")
    assert {status for status, _ in answers} == {200}
    assert [answers[0][1], answers[-1][1]] == [b"4.0", b"6.0"]
    until(lambda: len(listed(home)["services"]) == 1, "the old version ends", lambda: f"{listed(home)} {gateway.text}")
    assert change(home, "apply", "next.json") == {"changes": [], "pending": []}, "nothing changes twice"
    change(home, "undo")
    assert gateway.ask(2, "/predict/times").value == 4.0


def test_a_check_changes_nothing(home: Living, gateway: Serving) -> None:
    home.file("next.json", service(replicas=2, objective={"latency_p99": "1s"}))
    done = home.poise("service", "apply", "next.json", "--check")
    assert done.code == 0 and sorted(done.text.splitlines()) == [
        "+ service times.objective.latency_p99: 1s",
        "+ service times.replicas: 2",
    ]
    assert "replicas" not in change(home, "show")["documents"]["service times"]


def test_limits_and_replicas_apply_to_the_running_version(home: Living, gateway: Serving) -> None:
    version = listed(home)["services"][0]["version"]
    change(home, "apply", "next.json", next=service(replicas=2, timeout="5s"))
    until(lambda: listed(home)["services"][0]["replicas"] == 2, "there are two replicas", lambda: gateway.text)
    first, second = listed(home)["services"][0]["jobs"]
    assert [one["version"] for one in listed(home)["services"]] == [version]
    with asking(gateway) as answers:
        change(home, "drain", first)
        until(lambda: first not in listed(home)["services"][0]["jobs"], "it has ended")
        until(lambda: listed(home)["services"][0]["replicas"] == 2, "another one is there", lambda: gateway.text)
    assert {status for status, _ in answers} == {200} and second in listed(home)["services"][0]["jobs"]
    change(home, "undo")
    until(lambda: listed(home)["services"][0]["replicas"] == 1, "one is ended")


def test_a_version_that_cannot_start_changes_nothing(home: Living, gateway: Serving) -> None:
    before = change(home, "show")["documents"]
    home.file("next.json", service(model="Never"))
    done = home.poise("service", "apply", "next.json")
    assert done.code == 1 and "no weights here" in done.err and "the old one stays" in done.err
    assert gateway.ask(2, "/predict/times").value == 4.0
    assert change(home, "show")["documents"] == before
    home.file("next.json", service(name="other", model="Never"))
    assert home.poise("service", "apply", "next.json").code == 1
    assert gateway.ask(2, "/predict/other").status == 404


def test_a_service_is_added_and_removed(home: Living, gateway: Serving) -> None:
    change(home, "apply", "next.json", next=service(name="other", model="Thrice"))
    assert gateway.ask(2, "/predict/other").value == 6.0 and gateway.ask(2, "/predict/times").value == 4.0
    change(home, "remove", "other")
    assert gateway.ask(2, "/predict/other").status == 404
    until(lambda: len(listed(home)["services"]) == 1, "its replica ends", lambda: gateway.text)


def test_a_canary_is_promoted_and_rolled_back_by_hand(home: Living, gateway: Serving) -> None:
    canary = {"model": "models.py:Thrice", "share": ["50%"], "promote": False}
    with asking(gateway) as answers:
        change(home, "apply", "next.json", next=service(canary=canary))
        until(lambda: (200, b"6.0") in answers, "the canary answers", lambda: gateway.text)
        change(home, "rollback", "times")
        assert "canary" not in change(home, "show")["documents"]["service times"]
        asked = len(answers)
        until(lambda: len(answers) > asked + 20 and (200, b"6.0") not in answers[-20:], "the canary answers no more")
        change(home, "apply", "next.json")
        asked = len(answers)
        until(lambda: (200, b"6.0") in answers[asked:], "the canary answers again", lambda: gateway.text)
        change(home, "promote", "times")
        until(
            lambda: len(listed(home)["services"]) == 1, "the old version ends", lambda: f"{listed(home)} {gateway.text}"
        )
    assert {status for status, _ in answers} == {200}
    assert change(home, "show")["documents"]["service times"]["model"] == "models.py:Thrice"
    assert gateway.ask(2, "/predict/times").value == 6.0
    assert home.poise("service", "promote", "times").code == 1, "there is no trial any more"
    change(home, "undo")
    assert gateway.ask(2, "/predict/times").value == 4.0


def test_upstreams_are_added_drained_and_removed(home: Living, gateway: Serving) -> None:
    with Upstream(Model("a")) as a, Upstream(Model("b")) as b:
        change(home, "apply", "next.json", next=upstreams(a.url, b.url))
        body = b'{"model": "m", "prompt": "x"}'
        with asking(gateway, "/v1/completions", body) as answers:
            until(lambda: len(answers) > 10, "they answer")
            change(home, "drain", "u0")
            assert [one["state"] for one in listed(home)["upstreams"]] == ["draining", "healthy"]
            change(home, "remove", "u0")
            change(home, "undo")
            change(home, "undo")
            assert [one["state"] for one in listed(home)["upstreams"]] == ["healthy", "healthy"]
        assert {status for status, _ in answers} == {200}
    assert change(home, "show")["history"][-1]["settled"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("drain", "u7"), "there is no upstream or replica `u7`"),
        (("remove", "tims"), "did you mean `times`?"),
        (("show", "tims"), "did you mean `times`?"),
        (("apply", "wrong.json"), "wrong.json:1"),
        (("apply", "record.json"), "cannot be changed while the service runs"),
        (("apply", "keys.yaml"), "it is read again within a second"),
        (("apply", "gone.json"), "gone.json"),
        (("list", "--gateway", "x"), "there is no gateway `x`"),
    ],
)
def test_what_cannot_be_done_is_said(home: Living, gateway: Serving, arguments: tuple[str, ...], said: str) -> None:
    home.file("wrong.json", service(replicas="many"))
    home.file("record.json", service(record={"file": "x.jsonl"}))
    home.file("keys.yaml", f"kind: keys\nkeys: [{{name: a, sha256: {'a' * 64}}}]\n")
    done = home.poise("service", *arguments)
    assert done.code == 1 and said in done.err and not done.out


def test_the_api_is_not_for_others_without_keys(gateway: Serving) -> None:
    told = gateway.ask(b"", "/admin/", "GET")
    assert told.status == 403 and b"poise service" in told.body


def test_a_killed_gateway_goes_on_with_what_was_changed(home: Living, gateway: Serving) -> None:
    change(home, "apply", "next.json", next=service(model="Thrice"))
    until(lambda: len(listed(home)["services"]) == 1, "the old version ends", lambda: gateway.text)
    served = listed(home)["services"][0]
    before = gateway.gateway()
    os.kill(before, signal.SIGKILL)
    until(lambda: gateway.gateway() not in (0, before), "another one takes over", lambda: gateway.text)
    until(lambda: home.poise("service", "list").code == 0, "it listens", lambda: gateway.text)
    assert gateway.ask(2, "/predict/times").value == 6.0
    service_now = listed(home)["services"][0]
    assert [service_now[of] for of in ("version", "jobs")] == [served[of] for of in ("version", "jobs")], "they stay"
    change(home, "apply", "next.json", next=service())


def test_a_restart_goes_on_with_what_was_changed_unless_its_files_were(living: Living) -> None:
    port = str(free_port())
    with Upstream(Model("a")) as a, Upstream(Model("b")) as b:
        living.file("up.json", upstreams(a.url, b.url))

        def serve() -> tuple[Any, str]:
            process = living.start("serve", "up.json", "--port", port)
            try:
                until(lambda: living.poise("service", "list").code == 0, "it listens")
                found = living.poise("service", "list", "--json").value["upstreams"]
                change(living, "drain", "u0")
            finally:
                process.terminate()
                said = process.communicate(timeout=30)[1].decode()
            return [one["state"] for one in found], said

        assert serve()[0] == ["healthy", "healthy"]
        states, said = serve()
        assert states == ["draining", "healthy"] and "goes on with the changes" in said
        living.file("up.json", upstreams(b.url, a.url))
        assert serve()[0] == ["healthy", "healthy"]
