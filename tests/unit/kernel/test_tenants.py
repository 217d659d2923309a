"""Tokens in the ledger, and what of a tenant's stays within it."""

import msgspec
import pytest

from poise.errors import Conflict, NotFound
from poise.kernel.ledger.tokens import PAST_TOKENS
from poise.kernel.messages import AddToken, RevokeToken
from poise.model.events import JobSubmitted, decode_event, encode_event
from poise.model.jobs import Job
from poise.model.tenants import Bearer, Role, declared_class
from poise.testing import World, replay
from poise.units import DAY
from unit.asking import explained


def add(world: World, secret: str, lasts: int = 0) -> str:
    world.ask(AddToken(request=world.request(), tenant="ann", role=Role.VIEWER, hash=secret, lasts=lasts))
    token: str = world.replies[-1].value.id
    return token


def test_tokens_are_in_the_log_and_only_those_that_stand_are_found() -> None:
    world = World()
    first, second = add(world, "a"), add(world, "b", lasts=30 * DAY)
    world.ask(RevokeToken(world.request(), first))
    assert world.ledger.tokens.of_secret("a") is None
    found = world.ledger.tokens.of_secret("b")
    assert found is not None
    assert (found.id, found.expires) == (second, world.now + 30 * DAY)
    assert replay(world.log).encode() == world.ledger.encode()
    assert world.restart(from_checkpoint=True).ledger.tokens.of_secret("b") == found
    with pytest.raises(NotFound, match="there is no token `t1`"):
        world.ask(RevokeToken(world.request(), first))


def test_revoked_tokens_are_kept_for_the_audit_within_a_bound() -> None:
    world = World(check=False)
    for number in range(PAST_TOKENS + 3):
        world.ask(RevokeToken(world.request(), add(world, f"secret {number}")))
        world.after("1ms")
    assert len(world.ledger.tokens) == PAST_TOKENS
    assert min(world.ledger.tokens, key=len) == "t4"
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_log_that_is_older_than_tenants_is_read() -> None:
    """Of 0.1.0: no tenant, nobody who asked."""
    job = Job(id="j1", units=(), name="old")
    old = msgspec.msgpack.decode(encode_event(JobSubmitted(at=1, job=job)))
    assert "tenant" not in old["job"]
    assert "by" not in old
    told = decode_event(msgspec.msgpack.encode(old))
    assert isinstance(told, JobSubmitted)
    assert (told.job.tenant, told.by) == ("default", "")


def test_what_is_learned_of_a_class_stays_within_its_tenant() -> None:
    """That others run the same command, how long it takes, and what it needs is theirs."""
    world = World().nodes(1, cpu=4)
    for number in range(5):
        world.job(f"hers{number}", tenant="bob", **{"class": "train"}).round().finish(f"hers{number}", run="77s")
    for tenant, runs in (("ann", 0), ("bob", 5), ("default", 0)):
        world.job(f"{tenant}s", tenant=tenant, cpu=4, **{"class": "train"})
        [waiting] = explained(world, f"{tenant}s").waiting
        assert waiting.prediction is not None
        assert waiting.prediction.runs == runs


def test_a_table_of_throughputs_is_for_all_tenants() -> None:
    world = World()
    for tenant, written in (("default", "train"), ("ann", "train"), ("default", "a:b"), ("ann", "a:b")):
        compiled = world.controller.prepare({"run": "true", "class": written}, 0.0, world.now, tenant)
        assert declared_class(compiled.units[0].kind) == written
    kinds = {
        world.controller.prepare({"run": "true", "class": written}, 0.0, world.now, tenant).units[0].kind
        for tenant, written in (("ann", "train"), ("default", "ann:train"), ("default", "train"))
    }
    assert len(kinds) == 3, "nobody gets at another's profile by spelling its name"


def test_the_work_of_others_goes_by_its_id() -> None:
    """An operator's names are those of its own tenant, so that a name means one thing."""
    world = World().nodes(1).job("train", tenant="ann").job("train", tenant="bob")
    operator = Bearer("ann", Role.OPERATOR)
    assert world.cancel("train", operator).status("j1") == "cancelled"
    assert world.cancel("j2", operator).status("j2") == "cancelled"
    with pytest.raises(NotFound):
        world.cancel("train", Bearer("carol", Role.OPERATOR))


def test_a_name_is_taken_within_a_tenant_only() -> None:
    world = World().nodes(1).job("train", tenant="ann").job("train", tenant="bob")
    with pytest.raises(Conflict) as refused:
        world.job("train", tenant="bob")
    assert refused.value.record.have == "j2"
