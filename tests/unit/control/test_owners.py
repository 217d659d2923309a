"""Work of a token with a Unix account runs as that account, on nodes that offer it, and only its holder enters it."""

from typing import Any

import msgspec
import pytest

from poise.control.storehouse import trees_of
from poise.drivers.security import digest, worker_key
from poise.kernel.messages import AddToken
from poise.model.calls import ATTEMPT
from poise.model.messages import Attempt, Desired, Launch
from poise.model.tenants import Role
from poise.model.trees import Entry, Manifest
from poise.model.trees import digest as digest_of
from poise.testing import World, node
from unit.control.desk import OWNER, Answer, Desk


def a_desk(*accounts: str) -> Desk:
    """A node that offers these accounts, and tokens of one tenant: of `ann`, of `bob`, and of nobody."""
    desk = Desk(World(check=False))
    desk.world.join(msgspec.structs.replace(node("n1", cpu=16), accounts=accounts))
    for name, role in (("ann", Role.SUBMITTER), ("bob", Role.OPERATOR), ("", Role.SUBMITTER)):
        add(desk, name or "none", role, name)
    return desk


def add(desk: Desk, who: str, role: Role, account: str = "") -> str:
    """Add a token to the team; its id."""
    request = desk.world.request()
    desk.world.ask(AddToken(request=request, tenant="team", role=role, hash=digest(who), name=who, account=account))
    made: str = desk.world.replies[-1].value.id
    return made


def submit(desk: Desk, who: str, **fields: Any) -> Answer:
    return desk.call("POST", "/v1/jobs", {"spec": {"run": "true"} | fields}, who=who)


def launches(desk: Desk) -> list[Launch]:
    """All that a node was told to launch so far, after one more round."""
    desk.world.round()
    return [one for sent in desk.world.sent if isinstance(sent.message, Desired) for one in sent.message.launches]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workers": 2},
        {"parts": 3, "merge": "true"},
        {"kind": "graph", "run": None, "tasks": {"one": {"run": "true"}, "two": {"run": "true"}}},
        {"artifacts": {name: {"run": name, "resources": {"backend": "cpu"}} for name in ("one", "two")}, "run": None},
        {"parts": 20_000},
    ],
)
def test_every_task_of_a_job_runs_as_the_account_of_its_token(fields: dict[str, Any]) -> None:
    desk = a_desk("ann")
    spec = {name: value for name, value in ({"run": "true"} | fields).items() if value is not None}
    answer = desk.call("POST", "/v1/jobs", {"spec": spec}, who="ann")
    assert answer.status == 201, answer.body
    made = launches(desk)
    assert made
    assert {one.shape.where.account for one in made} == {"ann"}


def test_a_change_and_a_retry_keep_the_account() -> None:
    desk = a_desk("ann")
    job = submit(desk, "ann", resources={"cpu": 16}).value["job"]
    waits = submit(desk, "ann", resources={"cpu": 16}).value["job"]
    changed = {"spec": {"resources": {"node": "n1", "cpu": 2, "label": {"node": "n1"}}}}
    assert desk.call("POST", f"/v1/jobs/{waits}/change", changed, who="bob").status == 202
    desk.world.round().start(f"{job}.main").finish(f"{job}.main", outcome="failed")
    assert desk.call("POST", f"/v1/jobs/{job}/retry", who="ann").status == 201
    assert {one.shape.where.account for one in launches(desk)} == {"ann"}
    assert len({one.attempt.task for one in launches(desk)}) >= 2


@pytest.mark.parametrize("fields", [{}, {"parts": 3}])
@pytest.mark.parametrize(
    ("owner", "who", "account"),
    [("ann", "boss", "ann"), ("ann", "chief", "ann"), ("boss", "chief", "")]
    + [("boss", who, None) for who in ("ann", "bob", "none")]
    + [("ann", who, None) for who in ("bob", "none")],
)
def test_only_who_may_enter_a_job_retries_it_and_it_runs_as_its_account(
    owner: str, who: str, account: str | None, fields: dict[str, Any]
) -> None:
    """`boss` and `chief` are admins, and `chief` has an account."""
    desk = a_desk("ann", "bob")
    add(desk, "boss", Role.ADMIN)
    add(desk, "chief", Role.ADMIN, "bob")
    job = submit(desk, owner, **fields).value["job"]
    desk.world.round().finish_all(outcome="failed")
    before = len(launches(desk))
    answer = desk.call("POST", f"/v1/jobs/{job}/retry", who=who)
    assert answer.status == (403 if account is None else 201), answer.body
    assert {one.shape.where.account for one in launches(desk)[before:]} == ({account} - {None})


def test_once_a_token_has_named_an_account_the_rule_stays_for_all_but_admins() -> None:
    desk = a_desk("ann")
    add(desk, "boss", Role.ADMIN)
    job = submit(desk, "boss", stdin=True).value["job"]
    desk.world.round().start(f"{job}.main")
    for token in ("t1", "t2"):
        assert desk.call("DELETE", f"/v1/tokens/{token}").status == 202
    for _ in range(2):
        assert submit(desk, "none").code == "E133"
        for path, body in (("exec", {"run": ["id"]}), ("input", {"data": ""}), ("files", {"path": "."})):
            assert desk.call("POST", f"/v1/jobs/{job}/{path}", body, who="none").code == "E133", path
        assert submit(desk, "boss").status == 201
        desk.world.restart(from_checkpoint=True)


def test_what_was_submitted_before_the_first_account_runs_as_before() -> None:
    desk = Desk(World(check=False))
    desk.world.join(node("n1", cpu=16))
    add(desk, "none", Role.SUBMITTER)
    assert submit(desk, "none", every="1h", overlap="allow").status == 201
    add(desk, "ann", Role.SUBMITTER, "ann")
    desk.world.after("2h")
    assert {one.shape.where.account for one in launches(desk)} == {""}
    assert len(desk.world.ledger.jobs) > 1


def test_a_job_whose_account_no_node_offers_is_refused_at_once() -> None:
    desk = a_desk("carol")
    error = submit(desk, "ann").value["error"]
    assert (error["code"], error["field"]) == ("E110", "account")
    assert "no node runs commands as the account `ann`" in error["message"]
    assert error["have"] == "other accounts only: n1"
    assert desk.call("POST", "/v1/plan", {"spec": {"run": "true"}}, who="ann").code == "E110"
    assert submit(a_desk(), "ann").value["error"]["have"] == "no agent is root"
    assert submit(a_desk("*"), "ann").status == 201


def test_a_node_without_the_account_is_not_eligible_and_says_so() -> None:
    desk = a_desk("ann")
    desk.world.join(node("n2", cpu=16))
    first = submit(desk, "ann", resources={"cpu": 16}).value["job"]
    second = submit(desk, "ann", resources={"cpu": 16}).value["job"]
    assert [one.attempt.task for one in launches(desk)] == [f"{first}.main"]
    told = desk.call("GET", f"/v1/jobs/{second}/why-not/n2", who="ann").body.decode()
    assert "account ann" in told


def test_a_token_without_an_account_submits_nothing_where_others_have_one() -> None:
    desk = a_desk("ann", "bob")
    answer = submit(desk, "none")
    assert (answer.status, answer.code) == (403, "E133")
    assert "--account NAME" in answer.value["error"]["hint"]
    assert submit(desk, "home").status == 201, "an admin's own work runs as the user of the agent"
    assert [one.shape.where.account for one in launches(desk)] == [""]


@pytest.mark.parametrize("fields", [{"serves": "m"}, {"calls": True}])
def test_replicas_and_workers_of_calls_run_as_the_account(fields: dict[str, Any]) -> None:
    desk = a_desk("ann")
    job = submit(desk, "ann", **fields).value["job"]
    assert desk.world.state(job).account == "ann"


def test_a_container_runs_as_the_account_where_podman_needs_no_root() -> None:
    desk = a_desk("ann")
    refused = submit(desk, "ann", image="debian").value["error"]
    assert (refused["code"], refused["field"]) == ("E110", "resources.label.containers-rootless")
    labels = {"containers": "yes", "containers-rootless": "yes"}
    desk.world.join(msgspec.structs.replace(node("n2", cpu=16), accounts=("ann",), labels=labels))
    job = submit(desk, "ann", image="debian").value["job"]
    assert [one.attempt.task for one in launches(desk)] == [f"{job}.main"]


def test_only_its_holder_and_an_admin_enter_the_work_of_an_account() -> None:
    desk = a_desk("ann", "bob")
    job = submit(desk, "ann", stdin=True).value["job"]
    desk.world.round().start(f"{job}.main")
    for path, body in (
        ("exec", {"run": ["id"]}),
        ("connect", {"port": 22}),
        ("capture", {"kind": "stacks"}),
        ("input", {"data": ""}),
        ("files", {"path": "."}),
    ):
        answer = desk.call("POST", f"/v1/jobs/{job}/{path}", body, who="bob")
        assert (answer.status, answer.code) == (403, "E133"), (path, answer.body)


@pytest.mark.parametrize("name", ["root", "../x", "a b", "0", "-x", "a" * 40])
def test_a_token_names_no_account_that_cannot_be_a_persons(name: str) -> None:
    asked = {"tenant": "team", "role": "submitter", "hash": "0" * 64, "account": name}
    answer = Desk().call("POST", "/v1/tokens", asked)
    assert (answer.status, answer.code) == (422, "E107"), answer.body


def test_a_token_tells_its_account() -> None:
    desk = a_desk("ann")
    told = desk.call("GET", "/v1/whoami", who="ann").value
    assert (told["account"], told["accounts"]) == ("ann", True)
    assert not Desk().call("GET", "/v1/whoami").value["accounts"]
    assert [one["account"] for one in desk.call("GET", "/v1/tokens").value] == ["ann", "bob", ""]
    told = desk.call("GET", "/v1/audit?after=0&follow=false").body.decode()
    assert "added token t1 (ann): submitter of team, account ann" in told


def test_files_of_an_account_go_to_no_job_of_another_account() -> None:
    desk = a_desk("ann", "bob")
    sent = b"the file of ann"
    manifest = Manifest((Entry("f", "file", len(sent), digest_of(sent)),)).encode()
    tree, bodies = digest_of(manifest), msgspec.msgpack.encode([manifest, sent])
    assert desk.call("POST", "/v1/files", bodies, who="ann").value == {"stored": 2}
    assert desk.call("POST", f"/v1/trees/{tree.hex()}", tree, who="ann").body == b""
    brought = {"run": ["cat", "f"], "sync": {"tree": tree.hex()}}
    assert submit(desk, "ann", **brought).status == 201
    assert desk.call("GET", f"/v1/trees/{tree.hex()}", who="bob").status == 404
    assert submit(desk, "bob", **brought).value["error"]["field"] == "tree", "the client sends what is missing"
    assert trees_of(desk.world.ledger)[0][0] == "team/ann"
    attempt = Attempt("j1.main", 1)
    key = worker_key(OWNER, attempt)
    assert desk.call("POST", "/v1/attempts/files", b"", who=key, more={ATTEMPT: str(attempt)}).body == tree
