"""Policies that people write as files: what they say is what is decided by, and what is wrong is told by name."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.drivers.plugins import build, choose
from poise.drivers.yamlfile import load_yaml
from poise.errors import SpecError
from poise.model.triggers import Triggers
from poise.policy.rank import PRESETS, RANK_TERMS
from poise.policy.recipe import RECIPES, Recipe, compile_recipe, digest_of
from poise.policy.reclaim import MIN_RUN, Preemption
from poise.policy.score import TERMS
from poise.policy.suites import Suite
from poise.testing import World, node
from poise.units import MINUTE, SECOND

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def recipe(**fields: Any) -> Recipe:
    return compile_recipe({"kind": "policy", "name": "ours", **fields})


def refused(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as raised:
        recipe(**fields)
    assert raised.value.record.hint
    return raised.value


def test_the_example_extends_the_shipped_policy() -> None:
    made = compile_recipe(load_yaml(EXAMPLES / "policy.yaml"))
    poise = RECIPES[0]
    assert made == Recipe(
        name="ours",
        order={"urgency": 0.5, "thrift": 0.3, "waiting": 0.2},
        score={"fit": 0.6, "speed": 0.3, "balance": 0.1},
        reserve=poise.reserve,
        preempt=Preemption(by="class", min_run=2 * MINUTE, budget=1, at_once=Preemption().at_once),
        elastic=poise.elastic,
        reallocate=poise.reallocate,
    )


def test_what_is_left_out_is_the_simplest() -> None:
    assert recipe() == Recipe(name="ours")
    assert recipe(extends="poise", preempt=None).preempt is None
    assert recipe(preempt={}).preempt == Preemption(min_run=MIN_RUN)


@pytest.mark.parametrize("base", RECIPES, ids=lambda base: base.name)
def test_every_shipped_recipe_can_be_extended(base: Recipe) -> None:
    assert msgspec.structs.replace(recipe(extends=base.name), name=base.name) == base


def test_weights_decide_where_work_goes() -> None:
    """Best fit takes the small node, least loaded the large one."""

    def where(**score: float) -> list[str]:
        world = World(Suite(recipe(score=score))).join(node("small", cpu=2)).join(node("large", cpu=8))
        return world.job("a", cpu=2, memory="1GiB").round().where("a")

    assert where(fit=1) == ["small"]
    assert where(fit=0.01, first=1) == ["large"]


def test_weights_decide_who_comes_first() -> None:
    def first(**order: float) -> str:
        world = World(Suite(recipe(order=order))).nodes(1, cpu=1).job("light", weight=1).after("1s")
        world.job("blocker").finish("light").job("early").after("1s").job("heavy", weight=5).round()
        world.finish("blocker").round()
        return "heavy" if world.where("heavy") else "early"

    assert first(waiting=1) == "early"
    assert first(weight=1) == "heavy"


@pytest.mark.parametrize("order", [*PRESETS, "urgency", "arrival", "run"])
def test_an_order_has_a_name_or_weights(order: str) -> None:
    assert World(Suite(recipe(order=order))).nodes(1).job("a").round().where("a") == ["n1"]


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"kind": "job"}, "kind", "kind: policy"),
        ({"name": ""}, "name", "name: ours"),
        ({"name": "a b"}, "name", "name: ours"),
        ({"extends": "pose"}, "extends", "did you mean `poise`?"),
        ({"extends": "static"}, "extends", "known: poise"),
        ({"order": "urgent"}, "order", "did you mean `urgency`?"),
        ({"order": "waiting"}, "order", "order: {waiting: 1}"),
        ({"order": {}}, "order", "order: {urgency"),
        ({"order": {"waitin": 1}}, "order.waitin", "did you mean `waiting`?"),
        ({"order": {"waiting": "much"}}, "order.waiting", "waiting: 0.5"),
        ({"order": {"waiting": True}}, "order.waiting", "waiting: 0.5"),
        ({"order": {"waiting": float("nan")}}, "order.waiting", "waiting: 0.5"),
        ({"order": {"waiting": float("inf")}}, "order.waiting", "waiting: 0.5"),
        ({"order": 3}, "order", "order: {urgency"),
        ({"score": {"fitt": 1}}, "score.fitt", "did you mean `fit`?"),
        ({"score": {"os.system": 1}}, "score.os.system", "known: fit"),
        ({"score": {"fit": 10**400}}, "score.fit", "fit: 0.5"),
        ({"score": {"fit": 1, "load": -1}}, "score", "score: {fit"),
        ({"score": ["fit"]}, "score", "score: {fit"),
        ({"turns": "equally"}, "turns", "did you mean `equal`?"),
        ({"spread": "yes"}, "spread", "spread: true"),
        ({"preempt": {"by": "klass"}}, "preempt.by", "did you mean `class`?"),
        ({"preempt": {"min_run": "long"}}, "preempt.min_run", "min_run: 30s"),
        ({"preempt": {"budget": -1}}, "preempt.budget", "budget: 3"),
        ({"preempt": {"at_once": 0}}, "preempt.at_once", "at_once: 16"),
        ({"preempt": {"minrun": "3s"}}, "preempt.minrun", "did you mean `min_run`?"),
        ({"preempt": "class"}, "preempt", "preempt: {by"),
        ({"terms": {"mine": "os:system"}}, "terms", "did you mean `triggers`?"),
        ({"elastc": True}, "elastc", "did you mean `elastic`?"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_a_hint(fields: dict[str, Any], field: str, says: str) -> None:
    record = refused(**fields).record
    assert record.field == field
    assert says in record.hint


def test_an_unknown_term_tells_all_that_are_known() -> None:
    assert refused(score={"zzz": 1}).record.need == ", ".join(TERMS)
    assert refused(order={"zzz": 1}).record.need == ", ".join(RANK_TERMS)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_fields = st.sampled_from(["name", "extends", "order", "score", "spread", "turns", "preempt", "elastic", "other"])


@given(st.dictionaries(_fields, _values, max_size=4) | _values)
def test_whatever_a_file_says_it_compiles_or_is_refused(document: Any) -> None:
    if isinstance(document, dict):
        document = {"kind": "policy", "name": "ours"} | document
    try:
        Suite(compile_recipe(document))
    except SpecError as error:
        assert error.record.hint


# --- what the log calls it -------------------------------------------------------------------------------------------


def test_the_log_names_a_recipe_with_its_digest(tmp_path: Path) -> None:
    """So that a replay knows that this is not the shipped policy, and not another that was called the same."""

    def label(text: str) -> str:
        path = tmp_path / "policy.yaml"
        path.write_text(f"kind: policy\nname: poise\n{text}\n")
        choice = choose(str(path))
        assert build(choice).name == choice.label
        assert not choice.foreign
        return choice.label

    one, other = label("score: {fit: 1}"), label("score: {fit: 1, load: 1}")
    assert one.startswith("poise@") and other.startswith("poise@") and one != other
    assert label("score: {fit: 1.0} # the same") == one
    assert choose("poise").label == "poise"


def test_a_digest_tells_the_versions_of_packages_apart() -> None:
    made = recipe()
    assert len({digest_of(made), digest_of(made, ["terms 1.0"]), digest_of(made, ["terms 1.1"])}) == 3


def test_a_name_that_nobody_knows_is_told_the_known_ones() -> None:
    with pytest.raises(SpecError) as raised:
        choose("pois")
    assert (raised.value.record.field, raised.value.record.hint) == ("--policy", "did you mean `poise`?")


# --- fairness --------------------------------------------------------------------------------------------------------


def test_fairness_is_a_number_from_0_to_1_and_a_half_if_left_out() -> None:
    document = {"kind": "policy", "name": "x", "extends": "poise"}
    assert compile_recipe(document).fairness == 0.5
    assert compile_recipe({**document, "fairness": 0.8}).fairness == 0.8
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(SpecError) as raised:
            compile_recipe({**document, "fairness": wrong})
        assert (raised.value.record.code, raised.value.record.field) == ("E103", "fairness")


# --- what forces a round ---------------------------------------------------------------------------------------------


def test_triggers_are_written_as_people_do_and_what_is_left_out_stays() -> None:
    triggers = {"failed_checks": 5, "response_above": "1s", "use_above": "75%", "hot_above": 0.95, "hot_for": "1m"}
    made = compile_recipe({"kind": "policy", "name": "x", "triggers": triggers}).triggers
    expected = Triggers(
        failed_checks=5, response_above=SECOND, use_above=750, hot_above=950, hot_for=60 * SECOND,
    )  # fmt: skip
    assert made == expected


@pytest.mark.parametrize(
    ("triggers", "code", "field"),
    [
        ({"use_above": "110%"}, "E103", "triggers.use_above"),
        ({"use_above": "much"}, "E103", "triggers.use_above"),
        ({"use_for": "-1s"}, "E103", "triggers.use_for"),
        ({"failed_checks": 0}, "E103", "triggers.failed_checks"),
        ({"hot_above": "60%"}, "E103", "triggers.cool_below"),
        ({"hot_abov": "60%"}, "E102", "triggers.hot_abov"),
        (3, "E102", "triggers"),
    ],
)
def test_triggers_that_make_no_sense_are_refused(triggers: Any, code: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_recipe({"kind": "policy", "name": "x", "triggers": triggers})
    assert (caught.value.record.code, caught.value.record.field) == (code, field)
