"""Keys of a gateway: who may ask what, how much, and what is counted of it."""

import asyncio
import hashlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.test_door import Told
from poise.config import Home
from poise.drivers.security import own_account
from poise.errors import Denied, SpecError, Unreachable
from poise.model.keys import Allowance, compile_keys
from poise.model.reports.access import WhoReport
from poise.units import MINUTE, SECOND
from poise_serve.asgi import Receive, Scope, Send, answer, may_ask
from poise_serve.door import Door
from poise_serve.kernel.spending import Bucket
from poise_serve.keys import Keys, Usage
from poise_serve.refusals import Refused

USED = b'{"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}}'
ANN, T1 = "sk-ann", "t1"
EVENTS = b'data: {"a": 1}\n\n' * 5 + b"data: [DONE]\n\n"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Models:
    """An application with one model, which says in its answer whose request it takes it for."""

    answer = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST" and not may_ask(scope, "m"):
            await answer(send, 403, b"", [])
            return
        tenant = b",".join(value for name, value in scope["headers"] if name == b"x-poise-tenant")
        await answer(send, 200, self.answer or tenant, [])


class Gate:
    """A gateway with a file of keys."""

    def __init__(self, tmp: Path, *keys: str, home: Home | None = None) -> None:
        self.file = tmp / "keys.yaml"
        self.write(*keys)
        self.registry = CollectorRegistry()
        self.keys = Keys(self.file if keys else None, home)
        self.models = Models()
        self.door = Door(self.models, keys=self.keys, usage=Usage(self.registry))

    def write(self, *keys: str) -> None:
        self.file.write_text("kind: keys\nkeys:\n" + "".join(f"- {{{key}}}\n" for key in keys))

    def ask(self, secret: str = "", path: str = "/predict", method: str = "POST", **headers: str) -> Told:
        carried = {"authorization": f"Bearer {secret}"} if secret else {}
        return Told(self.door, method, path, **carried, **headers)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def key(name: str, more: str = "") -> str:
    return f"name: {name}, sha256: {digest(f'sk-{name}')}{more}"


def test_without_a_key_there_is_nothing_but_probes(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("app"))
    for path in ("/predict", "/v1/chat/completions", "/metrics", "/openapi.json", "/cache/m", "/nowhere"):
        for secret in ("", "sk-wrong"):
            told = gate.ask(secret, path)
            assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer"), path
    assert gate.ask(path="/healthz", method="GET").status == gate.ask(path="/readyz", method="GET").status == 200
    assert gate.ask("sk-app").status == 200
    assert Told(gate.door, authorization="Basic sk-app").status == 401


def test_a_key_may_what_its_scopes_say(tmp_path: Path) -> None:
    scopes = ("ask", "read", "forget")
    gate = Gate(tmp_path, *(key(scope, f", scopes: [{scope}]") for scope in scopes))
    for held in scopes:
        asked = {
            "ask": gate.ask(f"sk-{held}"),
            "read": gate.ask(f"sk-{held}", "/metrics", "GET"),
            "forget": gate.ask(f"sk-{held}", "/cache/m", "DELETE"),
        }
        assert {scope: told.status for scope, told in asked.items()} == {s: 200 if s == held else 403 for s in scopes}


def test_a_key_asks_the_models_that_it_names(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("some", ", models: [m]"), key("other", ", models: [n]"))
    assert gate.ask("sk-some").status == 200
    assert gate.ask("sk-other").status == 403


def test_whose_a_request_is_says_the_key_and_not_the_client(tmp_path: Path) -> None:
    """What is kept for one tenant is told to no other."""
    gate = Gate(tmp_path, key("app", ", tenant: ann"))
    assert gate.ask("sk-app", x_poise_tenant="bob").body == b"ann"


def test_a_key_has_so_many_requests(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("app", ", rate: 3/h"), key("other"))
    assert [gate.ask("sk-app").status for _ in range(4)] == [200, 200, 200, 429]
    told = gate.ask("sk-app", "/v1/completions")
    assert 1000 < int(told.headers["retry-after"]) <= 1200 and b"rate_limit_error" in told.body
    assert gate.ask("sk-app", "/v1/models", "GET").status == 200, "which costs nothing"
    assert gate.ask("sk-other").status == 200
    assert gate.counted("poise_key_refusals_total", key="app", tenant="default", reason="429") == 2


def test_a_key_has_so_many_tokens_and_what_it_took_is_counted(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("app", ", tenant: ann, tokens: 50/h"))
    gate.models.answer = USED
    assert [gate.ask("sk-app", "/v1/completions").status for _ in range(3)] == [200, 200, 429], "42 of 50, then 84"
    labels = {"key": "app", "tenant": "ann", "model": "m"}
    assert gate.counted("poise_key_tokens_total", kind="prompt", **labels) == 60
    assert gate.counted("poise_key_tokens_total", kind="completion", **labels) == 24
    assert gate.counted("poise_key_requests_total", status="200", **labels) == 2


def test_the_events_of_a_stream_without_usage_are_counted(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("app"))
    gate.models.answer = EVENTS
    gate.ask("sk-app", "/v1/completions")
    labels = {"key": "app", "tenant": "default", "model": "m", "kind": "completion"}
    assert gate.counted("poise_key_tokens_total", **labels) == 6


def test_what_a_prompt_says_of_usage_is_no_usage(tmp_path: Path) -> None:
    gate = Gate(tmp_path, key("app"))
    gate.models.answer = USED[:-1] + rb', "text": "\"completion_tokens\": 0"}'
    gate.ask("sk-app", "/v1/completions")
    labels = {"key": "app", "tenant": "default", "model": "m", "kind": "completion"}
    assert gate.counted("poise_key_tokens_total", **labels) == 12


def test_a_file_that_changes_is_read_again_and_what_is_left_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise_serve.keys.LOOKED", 0)
    gate = Gate(tmp_path, key("app", ", rate: 1/h"), key("gone"))
    assert [gate.ask(secret).status for secret in ("sk-app", "sk-gone")] == [200, 200]
    gate.write(key("app", ", rate: 1/h"), key("new"))
    os.utime(gate.file, ns=(1, 1))
    assert [gate.ask(secret).status for secret in ("sk-app", "sk-gone", "sk-new")] == [429, 401, 200]
    gate.file.write_text("kind: keys\nkeys: [")
    os.utime(gate.file, ns=(2, 2))
    assert gate.ask("sk-new").status == 200, "what is half written changes nothing"


def test_what_was_spent_stays_spent_when_a_key_is_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.keys.LOOKED", 0)
    gate = Gate(tmp_path, key("app", ", rate: 3/h"))
    assert [gate.ask("sk-app").status for _ in range(4)] == [200, 200, 200, 429]
    for turn, (more, statuses) in enumerate(
        [(", rate: 3/h, models: [m]", [429]), (", rate: 5/h", [200, 200, 429]), (", rate: 2/d", [429])], 1
    ):
        gate.write(key("app", more))
        os.utime(gate.file, ns=(turn, turn))
        assert [gate.ask("sk-app").status for _ in statuses] == statuses, more
    gate.write(f"name: app, sha256: {digest('sk-another')}, rate: 2/d")
    os.utime(gate.file, ns=(9, 9))
    assert [gate.ask(secret).status for secret in ("sk-app", "sk-another")] == [401, 429]


def test_a_request_that_runs_while_its_key_is_edited_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise_serve.keys.LOOKED", 0)
    gate = Gate(tmp_path, key("app", ", tokens: 40/h"))
    holder = asyncio.run(gate.keys.holder("sk-app"))
    gate.write(key("app", ", tokens: 50/h"))
    os.utime(gate.file, ns=(1, 1))
    assert gate.ask("sk-app").status == 200
    holder.spend(60, gate.keys._now())
    assert gate.ask("sk-app").status == 429


class Known:
    """Stands for a control plane that is asked whose token it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.role: str | None = "submitter"
        self.account, self.accounts = "", False
        self.is_away = False
        self.answers = {secret: threading.Event() for secret in (ANN, "")}
        """Whether it answers about this token, and about all others."""
        for event in self.answers.values():
            event.set()
        self.asked = 0
        monkeypatch.setattr(Keys, "_whoami", lambda _, secret: self._say(secret))
        monkeypatch.setattr("poise_serve.keys.HOLDS", 0)

    def _say(self, secret: str) -> WhoReport:
        self.asked += 1
        assert self.answers[ANN if secret == ANN else ""].wait(10)
        if self.is_away:
            raise Unreachable("away")
        if self.role is None or secret != ANN:
            raise Denied("no")
        return WhoReport(
            tenant="ann",
            role=self.role,
            token=T1,
            name="laptop",
            expires=0,
            account=self.account,
            accounts=self.accounts,
        )


def test_a_token_of_the_control_plane_is_a_key_until_it_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, gate = Known(monkeypatch), Gate(tmp_path, home=Home(tmp_path))
    assert gate.ask("sk-ann").body == b"ann"
    assert gate.ask("sk-bob").status == 401
    assert gate.ask("sk-ann", "/cache/m", "DELETE").status == 403
    known.is_away = True
    assert gate.ask("sk-ann").status == 200, "what it knew before stays good"
    assert gate.ask("sk-eve").status == 503
    known.is_away, known.role = False, "viewer"
    assert (gate.ask("sk-ann").status, gate.ask("sk-ann", "/metrics", "GET").status) == (403, 200)
    known.role = None
    assert gate.ask("sk-ann").status == 401


def test_only_admins_and_its_own_account_change_services_where_commands_run_as_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas of a gateway run as the account of its token, which is that of the gateway."""
    known, gate = Known(monkeypatch), Gate(tmp_path, home=Home(tmp_path))
    told = []
    for known.role, known.account, known.accounts in (
        ("operator", "", False),
        ("operator", "", True),
        ("operator", "ann", True),
        ("operator", own_account(), True),
        ("admin", "", True),
    ):
        told.append([gate.ask(ANN, "/admin/apply").status, gate.ask(ANN, "/cache/m", "DELETE").status])
    assert told == [[200, 200], [403, 200], [403, 200], [200, 200], [200, 200]]


def test_an_answer_of_the_control_plane_holds_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, gate = Known(monkeypatch), Gate(tmp_path, home=Home(tmp_path))
    monkeypatch.setattr("poise_serve.keys.HOLDS", 60)
    assert {gate.ask(secret).status for secret in ("sk-ann", "sk-bob") * 5} == {200, 401}
    assert known.asked == 2


def test_whoever_tries_many_keys_holds_up_none_that_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.keys.MOST_ASKED", 2)
    monkeypatch.setattr("poise_serve.keys.AT_ONCE", 1)
    known, keys = Known(monkeypatch), Keys(None, Home(tmp_path))

    async def ask() -> None:
        await keys.holder(ANN)
        known.answers[""].clear()
        strangers = [asyncio.create_task(keys.holder(f"sk-{number}")) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="too many unknown keys"):
            await keys.holder("sk-one-more")
        assert (await asyncio.wait_for(keys.holder(ANN), 5)).tenant == "ann"
        known.answers[""].set()
        assert [type(told) for told in await asyncio.gather(*strangers, return_exceptions=True)] == [Refused] * 2

    asyncio.run(ask())


def test_a_token_that_is_used_is_asked_about_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [SECOND]
    known, keys = Known(monkeypatch), Keys(None, Home(tmp_path), lambda: now[0])
    monkeypatch.setattr("poise_serve.keys.HOLDS", 30)

    async def ask() -> None:
        await keys.holder(ANN)
        known.answers[ANN].clear()
        now[0] += 20 * SECOND
        for _ in range(2):
            assert (await asyncio.wait_for(keys.holder(ANN), 5)).tenant == "ann", "nobody waits for the answer"
        known.role = None
        known.answers[ANN].set()
        async with asyncio.timeout(5):
            with pytest.raises(Refused):
                while True:
                    await keys.holder(ANN)
                    await asyncio.sleep(0.001)

    asyncio.run(ask())
    assert known.asked == 2


def test_a_control_plane_that_stands_still_is_taken_to_be_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.keys.WITHIN", 0.05)
    home = Home(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home.socket))
        listening.listen()
        with pytest.raises(Refused, match="is away"):
            asyncio.run(asyncio.wait_for(Keys(None, home).holder(ANN), 5))


def test_whoever_tries_many_keys_drives_out_none_that_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, gate = Known(monkeypatch), Gate(tmp_path, home=Home(tmp_path))
    monkeypatch.setattr("poise_serve.keys.KNOWN", 3)
    assert gate.ask("sk-ann").status == 200
    assert {gate.ask(f"sk-{number}").status for number in range(20)} == {401}
    known.is_away = True
    assert gate.ask("sk-ann").status == 200


def test_a_file_limits_tokens_of_the_control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known(monkeypatch)
    gate = Gate(tmp_path, "name: ci, token: t1, rate: 2/h, scopes: [ask, forget]", home=Home(tmp_path))
    assert [gate.ask("sk-ann").status for _ in range(3)] == [200, 200, 429]
    assert gate.ask("sk-ann", "/cache/m", "DELETE").status == 403, "and gives none more than its role"
    known.role = "admin"
    assert gate.ask("sk-ann", "/cache/m", "DELETE").status == 200
    gate = Gate(tmp_path, "name: ci, token: t2", home=Home(tmp_path))
    assert gate.ask("sk-ann").status == 401, "which the file does not name"


def test_without_keys_answers_are_forgotten_from_this_machine_only() -> None:
    door = Door(Models())
    for here in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert Told(door, "DELETE", "/cache/m", client=here).status == 200
    assert Told(door, "DELETE", "/cache/m", client="10.0.0.5").status == 403
    assert Told(door, "DELETE", "/cache/m", x_forwarded_for="10.0.0.5").status == 403, "through a proxy of this machine"
    assert Told(door, "POST", "/predict", client="10.0.0.5").status == 200


def test_a_bucket_fills_evenly_and_makes_up_for_what_was_spent_beyond() -> None:
    bucket = Bucket(Allowance(60, MINUTE), 0)
    bucket.spend(60, 0)
    assert bucket.wait(0) == pytest.approx(SECOND, rel=1e-6)
    assert bucket.wait(SECOND + 1) == 0
    bucket.spend(11, SECOND + 1)
    assert bucket.wait(SECOND + 1) == pytest.approx(11 * SECOND, rel=1e-6)
    assert bucket.wait(10 * MINUTE) == 0
    bucket.spend(60, 10 * MINUTE)
    assert bucket.wait(10 * MINUTE) > 0, "no more than one window's worth is kept"


def test_a_smaller_bucket_makes_no_debt_larger() -> None:
    bucket = Bucket(Allowance(600, MINUTE), 0)
    bucket.spend(600, 0)
    bucket.become(Allowance(60, MINUTE), 0)
    assert bucket.wait(0) == pytest.approx(SECOND, rel=1e-6)
    bucket.spend(1, 0)
    bucket.become(Allowance(30, MINUTE), 0)
    assert bucket.wait(0) == pytest.approx(4 * SECOND, rel=1e-6)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"name": "a"}, "keys[0]"),
        ({"name": "a", "sha256": "x"}, "keys[0].sha256"),
        ({"name": "a", "token": "t1", "sha256": "0" * 64}, "keys[0]"),
        ({"name": "a b", "token": "t1"}, "keys[0].name"),
        ({"name": "a", "token": "t1", "rate": "many"}, "keys[0].rate"),
        ({"name": "a", "token": "t1", "tokens": "0/d"}, "keys[0].tokens"),
        ({"name": "a", "token": "t1", "scopes": ["all"]}, "keys[0].scopes[0]"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(said: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as error:
        compile_keys({"kind": "keys", "keys": [said]})
    assert field in {one.field for one in error.value.record.all()}
