"""A file of shares: what is wrong in it is told at once, before anything is spent."""

from decimal import Decimal, getcontext
from random import Random
from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.share_tree import Amounts, ShareTree, borrowed_of, decayed
from poise.model.sharefile import compile_shares
from poise.units import DAY, HOUR, SECOND


def tree(*shares: dict[str, Any], **fields: Any) -> ShareTree:
    return compile_shares({"kind": "shares", "shares": list(shares), **fields})


def refused(*shares: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as error:
        tree(*shares, **fields)
    return [(record.code, record.field) for record in error.value.record.all()]


def test_a_tree_of_groups_tenants_projects_and_users() -> None:
    made = tree(
        {"group": "science"},
        {"user": "ann", "in": "vision"},
        {"tenant": "research", "in": "science", "guaranteed": {"gpu": 8}, "weight": 2},
        {"project": "vision", "in": "research"},
    )
    assert made.leaf_of("research", "vision", "ann") == "ann"
    assert made.leaf_of("research", "vision", "bob") == "vision.others"
    assert made.leaf_of("research", "", "ann") == "research.others"
    assert made.leaf_of("product", "vision", "ann") == "others"
    assert {node.name: node.weight for node in made.nodes}["research"] == 2000
    assert {node.name: node.guaranteed for node in made.nodes}["science"] == {"gpu": 8000}


def test_a_cycle_is_named() -> None:
    shares = {"group": "a", "in": "b"}, {"group": "b", "in": "c"}, {"group": "c", "in": "a"}
    with pytest.raises(SpecError) as error:
        tree(*shares)
    assert (error.value.record.code, error.value.record.field) == ("E106", "shares[0].in")
    assert error.value.record.have == "a in b in c in a"


def test_a_share_in_itself_is_a_cycle() -> None:
    assert refused({"group": "a", "in": "a"}) == [("E106", "shares[0].in")]


def test_one_that_only_leads_into_a_cycle_ends_too() -> None:
    assert ("E106", "shares[1].in") in refused(
        {"tenant": "t", "in": "a"}, {"group": "a", "in": "b"}, {"group": "b", "in": "a"}
    )


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), 1e9])
def test_a_weight_that_is_none(weight: float) -> None:
    assert refused({"tenant": "a", "weight": weight}) == [("E103", "shares[0].weight")]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    assert refused(
        {"tenant": "a", "weight": -1},
        {"tenant": "b", "user": "ann"},
        {"tenant": "c", "guaranteed": {"gpu": "many"}},
        half_life="1s",
    ) == [
        ("E102", "half_life"),
        ("E103", "shares[0].weight"),
        ("E102", "shares[1]"),
        ("E103", "shares[2].guaranteed.gpu"),
    ]


def test_names_and_places_that_cannot_be() -> None:
    assert refused({"tenant": "a"}, {"tenant": "a"}) == [("E107", "shares[1]")]
    assert refused({"tenant": "a"}, {"tenant": "b", "in": "c"}) == [("E105", "shares[1].in")]
    assert refused({"tenant": "a"}, {"tenant": "b", "in": "a"}) == [("E102", "shares[1].in")]
    assert refused({"user": "ann"}) == [("E102", "shares[0].in")]
    assert refused({"tenant": "others"}) == [("E107", "shares[0]")]
    assert refused({"tenant": "a"}, {"tenant": "a", "name": "b"}) == [("E107", "shares[1].tenant")]


def test_those_within_are_not_guaranteed_more_than_the_whole() -> None:
    whole = {"tenant": "a", "guaranteed": {"gpu": 4}}
    assert refused(whole, {"user": "x", "in": "a", "guaranteed": {"gpu": 5}}) == [("E103", "shares[0].guaranteed")]
    tree(whole, {"user": "x", "in": "a", "guaranteed": {"H100": 4}})


def test_what_is_held_beyond_the_guarantee_is_borrowed() -> None:
    def price(model: str) -> int:
        return {"H100": 9, "T4": 1}[model]

    def borrowed(held: Amounts, **guaranteed: int) -> Amounts:
        return borrowed_of(held, guaranteed, price)

    assert borrowed({"H100": 4, "T4": 4}) == {"H100": 4, "T4": 4}
    assert borrowed({"H100": 4, "T4": 4}, H100=3) == {"H100": 1, "T4": 4}
    assert borrowed({"H100": 4, "T4": 4}, gpu=5) == {"T4": 3}
    assert borrowed({"H100": 4, "T4": 4}, gpu=5, T4=4) == {}


def test_a_debt_halves_in_a_half_life_and_does_not_mind_being_looked_at() -> None:
    assert decayed(10**12, 0, 7 * DAY, 7 * DAY) == 10**12 // 2
    assert abs(decayed(10**12, 0, 14 * DAY, 7 * DAY) - 10**12 // 4) <= 1
    random = Random(1)  # noqa: S311 — not for secrets
    value, at, whole = 10**15, 5, 10**15
    for _ in range(3000):
        then = at + random.randrange(1, 10 * SECOND)
        value, at = decayed(value, at, then, DAY), then
    once = decayed(whole, 5, at, DAY)
    assert abs(value - once) <= 3000


def test_a_constant_rate_adds_up_to_what_the_integral_says() -> None:
    getcontext().prec = 50
    rate, life = 7_000_000_000, 7 * DAY
    for hours in (1, 30, 168, 5000):
        passed = Decimal(hours * HOUR) / Decimal(life)
        left = Decimal(2) ** -passed
        exact = Decimal(rate) * Decimal(life) / Decimal(HOUR) * (1 - left) / Decimal(2).ln()
        found = decayed(0, 0, hours * HOUR, life, rate)
        assert abs(Decimal(found) / exact - 1) < Decimal("1e-6")
        value, at = 0, 0
        for step in range(1, 200):
            then = hours * HOUR * step // 199
            value, at = decayed(value, at, then, life, rate), then
        assert abs(value - found) < found // 10**6 + 400


def test_models_are_charged_by_the_catalogue_unless_a_price_is_declared() -> None:
    made = tree({"tenant": "a"}, prices={"H100": 4.1})
    assert (made.price("H100"), made.price("T4"), made.price("unknown")) == (4_100_000, 650_000, 1_000_000)
