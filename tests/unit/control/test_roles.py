"""Every route, walked by everybody: nobody gets in without a token that stands, and a role is enough or it is not."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from poise.drivers.security import digest, worker_key
from poise.kernel.ledger.state import job_status
from poise.model.calls import ATTEMPT
from poise.model.messages import Attempt
from poise.model.tenants import Role
from poise.model.trees import Entry, Manifest
from poise.model.trees import digest as digest_of
from poise.testing import World
from poise.units import SECOND
from unit.control.desk import OWNER, Answer, Desk

NEEDS = {
    "GET /metrics": Role.VIEWER,
    "GET /v1/status": Role.VIEWER,
    "GET /v1/overview": Role.VIEWER,
    "GET /v1/demand": Role.OPERATOR,
    "POST /v1/demand": Role.OPERATOR,
    "GET /v1/backlog": Role.VIEWER,
    "GET /v1/changes": Role.VIEWER,
    "GET /v1/names/{kind}": Role.VIEWER,
    "GET /v1/whoami": Role.VIEWER,
    "GET /v1/jobs": Role.VIEWER,
    "POST /v1/jobs": Role.SUBMITTER,
    "POST /v1/jobs/ended": Role.VIEWER,
    "POST /v1/files": Role.SUBMITTER,
    "POST /v1/files/missing": Role.SUBMITTER,
    "GET /v1/trees/{tree}": Role.SUBMITTER,
    "POST /v1/trees/{tree}": Role.SUBMITTER,
    "POST /v1/jobs/{name}/files": Role.SUBMITTER,
    "GET /v1/jobs/{name}": Role.VIEWER,
    "POST /v1/jobs/{name}/cancel": Role.SUBMITTER,
    "POST /v1/cancel": Role.SUBMITTER,
    "POST /v1/jobs/{name}/hold": Role.SUBMITTER,
    "POST /v1/jobs/{name}/resume": Role.SUBMITTER,
    "POST /v1/jobs/{name}/release": Role.SUBMITTER,
    "POST /v1/jobs/{name}/change": Role.SUBMITTER,
    "POST /v1/jobs/{name}/retry": Role.SUBMITTER,
    "POST /v1/remove": Role.SUBMITTER,
    "GET /v1/jobs/{name}/explanation": Role.VIEWER,
    "GET /v1/jobs/{name}/deadline": Role.VIEWER,
    "GET /v1/jobs/{name}/why-not/{node}": Role.VIEWER,
    "GET /v1/jobs/{name}/unblock": Role.VIEWER,
    "GET /v1/jobs/{name}/logs": Role.VIEWER,
    "POST /v1/jobs/{name}/input": Role.SUBMITTER,
    "POST /v1/jobs/{name}/exec": Role.SUBMITTER,
    "POST /v1/jobs/{name}/connect": Role.SUBMITTER,
    "GET /v1/jobs/{name}/results": Role.VIEWER,
    "POST /v1/jobs/{name}/capture": Role.SUBMITTER,
    "GET /v1/jobs/{name}/captures": Role.VIEWER,
    "GET /v1/jobs/{name}/captures/{capture}": Role.VIEWER,
    "POST /v1/exec/{name}/input": Role.SUBMITTER,
    "POST /v1/plan": Role.VIEWER,
    "GET /v1/nodes": Role.VIEWER,
    "GET /v1/profiles": Role.VIEWER,
    "POST /v1/nodes/{name}/drain": Role.OPERATOR,
    "POST /v1/nodes/lost": Role.OPERATOR,
    "POST /v1/nodes/leave": Role.NODE,
    "POST /v1/nodes/lend": Role.OPERATOR,
    "POST /v1/nodes/jobs": Role.NODE,
    "GET /v1/incidents": Role.VIEWER,
    "GET /v1/incidents/{name}": Role.VIEWER,
    "GET /v1/schedules": Role.VIEWER,
    "POST /v1/schedules/{name}/hold": Role.SUBMITTER,
    "POST /v1/schedules/{name}/release": Role.SUBMITTER,
    "DELETE /v1/schedules/{name}": Role.SUBMITTER,
    "GET /v1/quotas": Role.VIEWER,
    "PUT /v1/quotas/{tenant}": Role.ADMIN,
    "DELETE /v1/quotas/{tenant}": Role.ADMIN,
    "GET /v1/budgets": Role.VIEWER,
    "PUT /v1/budgets": Role.ADMIN,
    "GET /v1/shares": Role.VIEWER,
    "PUT /v1/shares": Role.ADMIN,
    "POST /v1/shares/foreseen": Role.ADMIN,
    "GET /v1/reservations": Role.VIEWER,
    "POST /v1/reservations": Role.OPERATOR,
    "GET /v1/reservations/{name}": Role.VIEWER,
    "DELETE /v1/reservations/{name}": Role.OPERATOR,
    "GET /v1/policy": Role.VIEWER,
    "PUT /v1/policy": Role.ADMIN,
    "GET /v1/rules": Role.OPERATOR,
    "PUT /v1/rules": Role.OPERATOR,
    "POST /v1/rules/answers": Role.OPERATOR,
    "POST /v1/rules/orders": Role.SUBMITTER,
    "GET /v1/endpoints": Role.SUBMITTER,
    "GET /v1/shadow": Role.OPERATOR,
    "PUT /v1/shadow": Role.ADMIN,
    "DELETE /v1/shadow/{policy}": Role.ADMIN,
    "POST /v1/shadow/{policy}/promotion": Role.ADMIN,
    "POST /v1/policy/rollback": Role.ADMIN,
    "GET /v1/tokens": Role.ADMIN,
    "POST /v1/tokens": Role.ADMIN,
    "DELETE /v1/tokens/{token_id}": Role.ADMIN,
    "POST /v1/sign-out": Role.VIEWER,
    "GET /v1/events": Role.VIEWER,
    "GET /v1/audit": Role.ADMIN,
    "GET /v1/refusals": Role.ADMIN,
    "POST /v1/shutdown": Role.ADMIN,
    "POST /v1/stay": Role.ADMIN,
}
"""What each route needs. A new one is entered here by somebody who has thought about it."""

ENOUGH = {
    Role.NODE: {Role.NODE, Role.ADMIN},
    Role.VIEWER: {Role.VIEWER, Role.OBSERVER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN},
    Role.SUBMITTER: {Role.SUBMITTER, Role.OPERATOR, Role.ADMIN},
    Role.OPERATOR: {Role.OPERATOR, Role.ADMIN},
    Role.ADMIN: {Role.ADMIN},
}
"""The roles that may do what needs a role."""

WITH_A_KEY = {"POST /v1/attempts/files"}
"""Routes that take the key of an attempt in place of a token."""

PUBLIC = {
    "GET /",
    "GET /healthz",
    "GET /v1/authority",
    "POST /v1/sign-in",
    "POST /v1/sign-in/device",
    "POST /v1/sign-in/page",
}
"""Routes of people without a token: an issuer proves who signs in."""

BARE = {
    "GET /v1/schema/openapi.json": Role.VIEWER,
    "STREAM /v1/jobs": Role.SUBMITTER,
    "WEBSOCKET /v1/channel": Role.NODE,
    "WEBSOCKET /v1/calls": Role.SUBMITTER,
}
"""Routes that are in no document."""


@pytest.fixture(scope="module")
def desk() -> Desk:
    desk = Desk(World().nodes(1))
    for role in Role:
        desk.token(role.name, "ann", role)
    desk.token("late", "ann", Role.ADMIN, lasts=SECOND)
    gone = desk.token("gone", "ann", Role.ADMIN)
    assert desk.call("DELETE", f"/v1/tokens/{gone}").status == 202
    desk.world.after("2s").job("hers", tenant="bob").job("own", tenant="ann")
    return desk


def walk(job: str = "j9") -> Iterator[tuple[str, str, Role]]:
    """Every route with something in its places: names of what is not there, so that nothing changes."""
    for route, role in (NEEDS | BARE).items():
        method, path = route.split()
        path = path.replace("/nodes/{name}", "/nodes/n9").replace("{name}", job).replace("{node}", "n1")
        path = (
            path.replace("{kind}", "job")
            .replace("{tenant}", "zed")
            .replace("{token_id}", "t99")
            .replace("{policy}", "p9")
        )
        path = path.replace("{tree}", "f" * 64)
        path = path.replace("{capture}", "main.1.capture-1.stacks.svg")
        if path in ("/v1/events", "/v1/audit"):
            path += "?after=0&follow=false"
        yield method, path, role


def ask(desk: Desk, method: str, path: str, secret: str | None) -> Any:
    kind = "application/x-ndjson" if method == "STREAM" else "application/json"
    bodies = {
        "change": b'{"spec": {"priority": "low"}}',
        "input": b"{}",
        "exec": b'{"run": ["true"]}',
        "connect": b'{"port": 80}',
        "files": b'{"path": "out.txt"}',
        "capture": b"{}",
        "remove": b'{"jobs": ["j9"]}',
    }
    body = bodies.get(path.rpartition("/")[2], b"{")
    return desk.call({"STREAM": "POST"}.get(method, method), path, body, who=secret, kind=kind)


def test_every_route_is_in_the_table_and_says_what_it_needs(desk: Desk) -> None:
    document = desk.call("GET", "/v1/schema/openapi.json").value
    routes = {f"{method.upper()} {path}" for path, of in document["paths"].items() for method in of}
    assert routes == NEEDS.keys() | PUBLIC | WITH_A_KEY


@pytest.mark.parametrize(
    ("secret", "code"), [(None, "E130"), ("", "E130"), ("wrong", "E130"), ("gone", "E130"), ("late", "E132")]
)
def test_nobody_gets_in_without_a_token_that_stands(desk: Desk, secret: str | None, code: str) -> None:
    before = desk.world.ledger.revision
    for method, path, _ in walk():
        answer = ask(desk, method, path, secret)
        assert (answer.status, answer.code) == (401, code), (method, path)
    assert desk.world.ledger.revision == before
    assert desk.lifetime.asked == []


@pytest.mark.parametrize("role", Role)
def test_a_role_is_enough_or_it_is_not(desk: Desk, role: Role) -> None:
    for method, path, needed in walk():
        if role not in ENOUGH[needed]:
            answer = ask(desk, method, path, role.name)
            assert (answer.status, answer.code) == (403, "E133"), (method, path)
        elif method != "POST" or "/v1/s" not in path:  # to stop and to stay are left for a test of their own
            assert ask(desk, method, path, role.name).status in (200, 400, 404, 422, 202), (method, path)
    desk.call("DELETE", "/v1/quotas/zed")


def test_a_node_offers_itself_leaves_asks_which_jobs_are_gone_and_nothing_else(desk: Desk) -> None:
    allowed = [path for method, path, _ in walk() if ask(desk, method, path, Role.NODE.name).status != 403]
    assert allowed == ["/v1/nodes/leave", "/v1/nodes/jobs", "/v1/channel"]
    assert desk.call("POST", "/v1/nodes/jobs", b'["j1", "j99"]', who=Role.NODE.name).value == ["j99"]
    assert ask(desk, "WEBSOCKET", "/v1/channel", Role.OPERATOR.name).status == 403


def test_jobs_that_have_ended_are_told_from_those_that_have_not_and_those_that_are_not_known(desk: Desk) -> None:
    assert desk.call("POST", "/v1/jobs/ended", b'["j1", "j99"]').value == {"j99": ""}
    desk.world.cancel("j1")
    assert desk.call("POST", "/v1/jobs/ended", b'["j1", "j99"]').value == {"j1": "cancelled", "j99": ""}


def test_an_observer_reads_what_is_of_all_tenants_and_changes_nothing(desk: Desk) -> None:
    before = desk.world.ledger.revision
    for method, path, needed in walk("j1"):
        status = ask(desk, method, path, Role.OBSERVER.name).status
        assert (status != 403) == (needed is Role.VIEWER), (method, path)
    assert desk.world.ledger.revision == before
    jobs = desk.call("GET", "/v1/jobs", who=Role.OBSERVER.name).value
    assert {job["tenant"] for job in jobs} == {"ann", "bob"}
    assert jobs == desk.call("GET", "/v1/jobs", who=Role.OPERATOR.name).value
    scraped = desk.call("GET", "/metrics", who=Role.OBSERVER.name).body
    assert set(_metrics(scraped)) == set(_metrics(desk.call("GET", "/metrics", who=Role.OPERATOR.name).body))
    seen = desk.call("GET", "/v1/events?after=0&follow=false", who=Role.OBSERVER.name).body
    assert b"bob" in seen and b"token-added" not in seen


def _metrics(scraped: bytes) -> list[bytes]:
    return [line.split()[2] for line in scraped.splitlines() if line.startswith(b"# TYPE")]


def test_a_worker_of_calls_shows_the_key_of_its_attempt_before_it_is_heard(desk: Desk) -> None:
    key = worker_key(OWNER, Attempt("j1.main", 1))

    def dial(secret: str | None, attempt: str) -> Answer:
        return desk.call("WEBSOCKET", "/v1/workers", who=secret, more={ATTEMPT: attempt})

    assert dial(key, "j1.main#1").status == 200
    others = ("j1.main#2", "j2.main#1", "j1.main", "j1.main#", "j1.main#one", "#1", "#", "")
    for secret, attempt in ((None, "j1.main#1"), (OWNER, "j1.main#1"), *((key, other) for other in others)):
        answer = dial(secret, attempt)
        assert (answer.status, answer.code) == (401, "E130"), (secret, attempt)


def test_files_are_given_to_the_attempt_whose_key_is_shown(desk: Desk) -> None:
    sent = b"the file of ann"
    manifest = Manifest((Entry("f", "file", len(sent), digest_of(sent)),)).encode()
    tree, bodies = digest_of(manifest), msgspec.msgpack.encode([manifest, sent])
    assert desk.call("POST", "/v1/files", bodies, who="SUBMITTER").value == {"stored": 2}
    assert desk.call("POST", f"/v1/trees/{tree.hex()}", tree, who="SUBMITTER").body == b""
    spec = msgspec.json.encode({"spec": {"run": ["cat", "f"], "sync": {"tree": tree.hex()}}})
    job = desk.call("POST", "/v1/jobs", spec, who="SUBMITTER").value["job"]
    desk.world.job("theirs", tenant="bob")

    def ask_for(data: bytes, attempt: str, key: str | None) -> Answer:
        more = {ATTEMPT: attempt}
        return desk.call("POST", "/v1/attempts/files", data, who=key, more=more)

    own = Attempt(f"{job}.main", 1)
    key = worker_key(OWNER, own)
    assert ask_for(b"", str(own), key).body == tree
    assert msgspec.msgpack.decode(ask_for(digest_of(sent), str(own), key).body) == [sent]
    assert ask_for(digest_of(b"another"), str(own), key).status == 404
    assert ask_for(b"half a hash", str(own), key).status == 422
    theirs = Attempt("j2.main", 1)
    assert ask_for(digest_of(sent), str(theirs), worker_key(OWNER, theirs)).status == 404
    gone = Attempt("j99.main", 1)
    wrong = [(str(gone), worker_key(OWNER, gone)), (str(theirs), key), (str(own), None), (str(own), OWNER), ("", key)]
    for attempt, secret in wrong:
        assert ask_for(digest_of(sent), attempt, secret).status == 401, attempt


def test_it_goes_by_the_names_that_it_has_for_others() -> None:
    desk = Desk(World().nodes(1), known_as=("Head.example", "10.0.0.7", "fe80::1"))
    for host in ("head.example", "HEAD.example:7718", "10.0.0.7:7718", "[fe80::1]:7718", "localhost", "poise"):
        assert desk.call("GET", "/v1/status", host=host).status == 200, host
    for host in ("other.example", "10.0.0.8", "[fe80::2]", "fe80::1", "", "head.example:99999", "head.example:7718:1"):
        assert desk.call("GET", "/v1/status", host=host).code == "E131", host
    assert desk.call("GET", "/v1/authority", who=None).code == "E120", "it listens to no other machine"


def test_what_is_of_others_is_not_there(desk: Desk) -> None:
    """To the letter: the same answer as for what never was."""
    for method, path, needed in walk("JOB"):
        if "JOB" not in path:
            continue
        for secret in ("VIEWER", "SUBMITTER"):
            others, nobodys = (ask(desk, method, path.replace("JOB", job), secret) for job in ("j1", "j8"))
            assert others.status == nobodys.status == (404 if Role[secret] >= needed else 403)
            assert others.body.replace(b"j1", b"j8") == nobodys.body
        named = ask(desk, method, path.replace("JOB", "hers"), "SUBMITTER")
        assert named.code == ("E120" if needed <= Role.SUBMITTER else "E133")
        assert ask(desk, method, path.replace("JOB", "j1"), None).status == 401
    assert desk.call("GET", "/v1/jobs/j1", who="OPERATOR").value["tenant"] == "bob"


@pytest.mark.parametrize("route", ["whoami", "status", "overview", "jobs", "nodes", "quotas", "tokens"])
def test_no_thread_stands_between_a_reader_and_the_answer(
    desk: Desk, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a stream of submissions each way to a thread and back takes as long as a turn of the loop."""

    def refuse(*_: object) -> None:
        raise AssertionError("a thread was asked")

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", refuse)
    assert desk.call("GET", f"/v1/{route}").status == 200


def test_names_are_those_of_a_tenant() -> None:
    desk = Desk(World().nodes(1))
    for tenant in ("ann", "bob"):
        desk.token(tenant, tenant, Role.SUBMITTER)
        job = desk.call("POST", "/v1/jobs", {"spec": {"name": "train", "run": "true"}, "key": "k"}, who=tenant)
        assert job.status == 201
    assert [desk.call("GET", "/v1/jobs/train", who=of).value["id"] for of in ("ann", "bob")] == ["j1", "j2"]
    again = desk.call("POST", "/v1/jobs", {"spec": {"name": "train", "run": "true"}, "key": "k"}, who="bob")
    assert again.value["job"] == "j2", "a key is of its tenant"
    after = {"spec": {"run": "true", "after": ["j1"]}}
    assert desk.call("POST", "/v1/jobs", after, who="bob").code == "E105"
    assert desk.call("POST", "/v1/jobs/train/cancel", who="bob").value["job"] == "j2"
    assert desk.world.status("j1") == "pending"


def _cancelled(desk: Desk, asked: str = "", who: str = "home") -> tuple[list[str], dict[str, int]]:
    told = desk.call("POST", f"/v1/cancel{asked}", who=who).value
    assert told["cancelled"] == len(told["jobs"])
    return told["jobs"], told["tenants"]


def test_who_cancels_everything_cancels_what_is_of_their_tenant() -> None:
    world = World().nodes(1)
    for tenant in ("ann", "ann", "bob", "carol"):
        world.submit({"run": "true"}, tenant=tenant)
    desk = Desk(world)
    desk.token("ann", "ann", Role.SUBMITTER)
    desk.token("operator", "carol", Role.OPERATOR)
    assert _cancelled(desk, who="ann") == (["j1", "j2"], {"ann": 2})
    assert _cancelled(desk, who="ann") == ([], {})
    assert _cancelled(desk, who="operator") == (["j4"], {"carol": 1})
    assert _cancelled(desk) == ([], {})
    assert world.status("j3") == "pending"


def test_an_operator_cancels_what_is_of_all_tenants_when_that_is_asked_for() -> None:
    world = World().nodes(1)
    for tenant in ("ann", "bob", "bob"):
        world.submit({"run": "true"}, tenant=tenant)
    desk = Desk(world)
    desk.token("ann", "ann", Role.SUBMITTER)
    desk.token("operator", "carol", Role.OPERATOR)
    refused = desk.call("POST", "/v1/cancel?all_tenants=true", who="ann")
    assert (refused.status, refused.code) == (403, "E133")
    assert world.status("j1") == "pending"
    everybodys = _cancelled(desk, "?all_tenants=true", who="operator")
    assert everybodys == (["j1", "j2", "j3"], {"bob": 2, "ann": 1})


def test_jobs_after_others_are_cancelled_too_and_neither_begin_nor_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.control.api.jobs.CANCELLED_AT_ONCE", 1)
    world = World().job("first").job("second", after=["first"]).job("third", **{"after-any": ["first"]})
    desk = Desk(world)
    assert _cancelled(desk) == (["j1", "j2", "j3"], {"default": 3})
    assert [job_status(job) for job in world.ledger.jobs.values()] == ["cancelled"] * 3


def test_an_operator_cancels_anybodys_work_and_an_admin_stops_it_all() -> None:
    desk = Desk(World().nodes(1).job("hers", tenant="bob"))
    desk.token("operator", "ann", Role.OPERATOR)
    desk.token("admin", "ann", Role.ADMIN)
    assert desk.call("POST", "/v1/jobs/j1/cancel", who="operator").status == 202
    assert desk.call("POST", "/v1/nodes/n1/drain", {"on": True}, who="operator").value == {"node": "n1"}
    emptied = desk.call("POST", "/v1/nodes/n1/drain", {"moves": True}, who="operator")
    assert (emptied.status, emptied.value) == (202, {"node": "n1"})
    assert desk.call("POST", "/v1/stay", who="admin").status == 202
    assert desk.call("POST", "/v1/shutdown", who="admin").value == {"stopping": True}
    assert desk.lifetime.asked == ["stay"]  # the end comes a moment after the answer


def test_a_token_is_told_by_its_hash_and_asking_twice_makes_one() -> None:
    desk = Desk()
    body = {"tenant": "ann", "role": "viewer", "hash": "0" * 64, "expires": "30d"}
    first, again = (desk.call("POST", "/v1/tokens", body) for _ in range(2))
    assert (first.status, first.value["id"], again.value["id"]) == (201, "t1", "t1")
    assert desk.call("POST", "/v1/tokens", body | {"role": "admin"}).code == "E121"
    for wrong in ({"hash": "x"}, {"tenant": "a b"}, {"role": "king"}, {"expires": "0s"}, {"expires": "soon"}):
        assert desk.call("POST", "/v1/tokens", body | wrong).status == 422, wrong
    assert "0" * 64 not in str(desk.call("GET", "/v1/tokens").value)


def test_what_is_changed_says_who_did_it() -> None:
    desk = Desk(World().nodes(1))
    desk.token("carol", "ann", Role.ADMIN)
    job = {"spec": {"name": "train", "run": "true"}}
    for method, path, body in (
        ("POST", "/v1/jobs", job),
        ("POST", "/v1/jobs/train/cancel", None),
        ("POST", "/v1/nodes/n1/drain", {"on": True}),
        ("POST", "/v1/nodes/n1/drain", {"moves": True}),
        ("PUT", "/v1/quotas/bob", {"cpu": 2, "gpu": 0.5}),
        ("DELETE", "/v1/quotas/bob", None),
        ("PUT", "/v1/policy", {"name": "srtf"}),
        ("POST", "/v1/shutdown", None),
        ("DELETE", "/v1/tokens/t1", None),
    ):
        assert desk.call(method, path, body, who="carol").status < 300, path
    lines = desk.call("GET", "/v1/audit?after=0&follow=false").body.decode().splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [(of["token"], of["name"], of["tenant"], of["what"]) for of in told] == [
        ("", "", "default", "added token t1 (carol): admin of ann"),
        ("t1", "carol", "ann", "submitted j1 train of ann"),
        ("t1", "carol", "ann", "cancelled j1"),
        ("t1", "carol", "ann", "drained n1"),
        ("t1", "carol", "ann", "emptied n1"),
        ("t1", "carol", "ann", "bounded bob to 2 CPU, 0.5 GPU"),
        ("t1", "carol", "ann", "lifted the quota of bob"),
        ("t1", "carol", "ann", "set the policy to srtf"),
        ("t1", "carol", "ann", "stopped the control plane"),
        ("t1", "carol", "ann", "revoked token t1"),
    ]


def test_tokens_are_for_admins_to_see_and_their_hashes_for_nobody() -> None:
    desk = Desk()
    desk.token("operator", "ann", Role.OPERATOR)
    path = "/v1/events?after=0&follow=false"
    assert b"token-added" not in desk.call("GET", path, who="operator").body
    seen = desk.call("GET", path).body
    assert b"token-added" in seen
    assert digest("operator").encode() not in seen


def test_refusals_are_counted_and_fill_nothing() -> None:
    desk = Desk(World())
    desk.token("viewer", "ann", Role.VIEWER)
    before = desk.world.ledger.revision
    for number in range(400):
        desk.call("GET", f"/v1/jobs/{'x' * 1000}{number}", who="wrong")
    desk.call("POST", "/v1/shutdown", who="viewer")
    desk.call("GET", "/v1/jobs", host="evil.example")
    told = desk.call("GET", "/v1/refusals").value
    assert told["counts"] == {"E130": 400, "E131": 1, "E133": 1}
    assert (len(told["latest"]), max(len(of["path"]) for of in told["latest"])) == (256, 200)
    assert told["latest"][-2] | {"at": 0} == {
        "at": 0, "code": "E133", "path": "/v1/shutdown", "token": "t1", "tenant": "ann",
    }  # fmt: skip
    assert desk.world.ledger.revision == before


def test_a_stream_ends_when_its_token_does() -> None:
    desk = Desk(World().nodes(1))
    mine = desk.token("viewer", "ann", Role.VIEWER)
    path = "/v1/events?after=0&follow=false"
    assert b": whole" in desk.call("GET", path, who="viewer").body
    gate = desk.app._gate  # type: ignore[attr-defined]
    bearer = gate.bearer("viewer")
    assert gate.stands(bearer)
    desk.call("DELETE", f"/v1/tokens/{mine}")
    assert not gate.stands(bearer)


def test_a_refused_token_is_told_what_to_type_and_an_expired_one_is_named() -> None:
    desk = Desk(World())
    wrong = desk.call("GET", "/v1/status", who="wrong").value["error"]
    assert "POISE_TOKEN_FILE" in wrong["hint"]
    assert "poise token add" in wrong["hint"]
    desk.token("late", "ann", Role.VIEWER, lasts=1)
    desk.world.after(SECOND)
    late = desk.call("GET", "/v1/status", who="late").value["error"]
    assert "`poise token add --tenant ann --role viewer`" in late["hint"]
    latest = desk.call("GET", "/v1/refusals").value["latest"]
    assert [(of["code"], of["token"], of["tenant"]) for of in latest] == [("E130", "", ""), ("E132", "t1", "ann")]


def test_a_quota_of_a_tenant_that_nobody_knows_is_set_and_said() -> None:
    desk = Desk(World())
    desk.token("ann", "research", Role.VIEWER)
    said = desk.call("PUT", "/v1/quotas/resaerch", {"cpu": 1}).value
    assert said["note"] == "no token or job is of tenant `resaerch`; did you mean `research`?"
    assert "resaerch" in desk.world.ledger.quotas
    assert desk.call("PUT", "/v1/quotas/research", {"cpu": 1}).value["note"] == ""
    assert desk.call("DELETE", "/v1/quotas/research").value["note"] == ""
    assert desk.call("DELETE", "/v1/quotas/zzz").value["note"] == "tenant `zzz` has no quota"
