"""What people write of upstreams."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.serving_upstreams import compile_upstreams
from poise.units import MINUTE, SECOND

A = {"name": "a", "url": "gpu1:8000"}


def written(*upstreams: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "upstreams", "upstreams": list(upstreams or [A])} | more


def test_one_upstream_is_enough() -> None:
    front = compile_upstreams(written())
    assert [one.url for one in front.upstreams] == ["http://gpu1:8000"]
    assert (front.timeout, front.objective) == (10 * MINUTE, 0)
    health = front.health
    assert (health.delay, health.every, health.timeout, health.failures) == (30 * SECOND, 10 * SECOND, 5 * SECOND, 3)
    assert (front.ejection.failures, front.ejection.pause, front.ejection.longest) == (5, 30 * SECOND, 5 * MINUTE)
    assert (front.retries.share, front.retries.most) == (0.2, 2)


@pytest.mark.parametrize("url", ["gpu1:8000", "http://gpu1:8000/", "http://gpu1:8000/v1", "http://gpu1:8000/v1/"])
def test_a_url_may_be_that_of_a_client(url: str) -> None:
    assert compile_upstreams(written(A | {"url": url})).upstreams[0].url == "http://gpu1:8000"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"kind": "upstreams"}, "upstreams"),
        (written(kind="job"), "kind"),
        (written(A, A), "upstreams[1].name"),
        (written(A | {"name": "a b"}), "upstreams[0].name"),
        (written(A | {"url": "ftp://gpu1:8000"}), "upstreams[0].url"),
        (written(A | {"url": "http://user:key@gpu1"}), "upstreams[0].url"),
        (written(A | {"url": "gpu1..example:80"}), "upstreams[0].url"),
        (written(A | {"url": f"{'a' * 64}:80"}), "upstreams[0].url"),
        (written(discover=[{"name": "d", "dns": "vllm..svc:80"}]), "discover[0].dns"),
        (written(discover=[{"name": "d", "srv": "_http._tcp.vllm..svc"}]), "discover[0].srv"),
        (written(A | {"models": []}), "upstreams[0].models"),
        (written(A | {"key_from": "sk-123 456"}), "upstreams[0].key_from"),
        (written(A | {"weight": 0}), "upstreams[0].weight"),
        (written(A | {"weight": float("nan")}), "upstreams[0].weight"),
        (written(A | {"limit": 0}), "upstreams[0].limit"),
        (written(A | {"concurrency": {}}), "upstreams[0].concurrency.target_p99"),
        (written(A | {"concurrency": {"target_p99": "0s"}}), "upstreams[0].concurrency.target_p99"),
        (written(A | {"limit": 4, "concurrency": {"target_p99": "1s", "min": 5}}), "upstreams[0].concurrency.min"),
        (written(A | {"port": 80}), "upstreams[0].port"),
        (written(timeout=0), "timeout"),
        (written(objective={"latency_p99": "fast"}), "objective.latency_p99"),
        (written(body="2GiB"), "body"),
        (written(queue=-1), "queue"),
        (written(retries={"share": "120%"}), "retries.share"),
        (written(ejection={"failures": 0}), "ejection.failures"),
        (written(ejection={"slower": -1}), "ejection.slower"),
        (written(health={"path": "health"}), "health.path"),
        (written(health={"every": "0s"}), "health.every"),
        (written(router="a b"), "router"),
        (written(aliases={"chat": "m"}, fallbacks={"chat": ["n"]}), "fallbacks.chat"),
        (written(aliases={"chat": "m"}, fallbacks={"n": ["chat"]}), "fallbacks.n"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(document: Any, field: str) -> None:
    with pytest.raises(SpecError) as raised:
        compile_upstreams(document)
    assert raised.value.record.field == field
    assert raised.value.record.hint


def test_a_key_is_not_repeated_in_an_error() -> None:
    with pytest.raises(SpecError) as raised:
        compile_upstreams(written(A | {"key_from": "sk-secret key"}))
    assert "secret" not in repr(raised.value.record)


def test_an_alias_with_the_name_of_one_of_its_models_may_have_fallbacks() -> None:
    front = compile_upstreams(written(aliases={"chat": {"chat": "90%", "new": "10%"}}, fallbacks={"chat": ["new"]}))
    assert front.fallbacks == {"chat": ("new",)}
