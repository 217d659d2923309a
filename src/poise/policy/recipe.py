"""Policies as data: the shipped recipes, and those in users' files.

    kind: policy
    name: ours
    extends: poise
    order: {urgency: 0.5, thrift: 0.3, waiting: 0.2}
    score: {fit: 0.5, balance: 0.5}
    preempt: {by: class, min_run: 2m, budget: 1}

`compile_recipe` takes the parsed document and raises `SpecError` with all errors: the path of each field, the expected
value and a hint. A file names terms and never code, so it cannot refer to a function.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec

from poise.decoding import convert
from poise.errors import SpecError
from poise.model.document import Findings, near, shown
from poise.model.fields import MAX_DURATION, Quantity, parse_or_raise
from poise.model.spec import check_count, check_name
from poise.model.triggers import Triggers
from poise.policy.network import Network, check
from poise.policy.rank import ORDERS, PRESETS, RANK_TERMS
from poise.policy.reclaim import Preemption
from poise.policy.score import TERMS
from poise.units import parse_duration, parse_share

MAX_WEIGHT = 1e6
Weight = Annotated[float, msgspec.Meta(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]

MAX_TERMS = 64
"""Maximum number of terms of one order or score: each is computed for every candidate, or every node."""

FAIRNESS = 0.5
"""A wait of ten times its own run time doubles the worth of a unit: no unit starves, at a small cost in the mean."""

Turns = Literal["no", "equal", "weighted"]
TURNS = ("no", "equal", "weighted")
YIELDS_BY = ("class", "value", "remaining", "attained", "level", "deadline")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy as data.

    `order`: the name of an order or a preset, or weights of terms. `score`: weights of node terms; with `spread`, nodes
    are scored again after every task. `turns` takes nodes in turn instead. `overtake`: units behind a blocked unit may
    start before it. `reserve`: keep room for units that have waited. `preempt`: the rules of preemption. `elastic`:
    grow units into idle room. `reallocate`: move work off hot nodes. `fairness`, from 0 to 1: how much a long wait
    counts against a short run, for the order `value`. `triggers`: what forces a round; the caller of the policy uses
    it, not the policy itself. `network` picks the next start where several shapes fit (learned.py).
    """

    name: str
    order: str | dict[str, Weight] = "urgency"
    score: dict[str, Weight] = msgspec.field(default_factory=lambda: {"first": 1.0})
    spread: bool = False
    turns: Turns = "no"
    overtake: bool = True
    reserve: bool = False
    preempt: Preemption | None = None
    elastic: bool = False
    reallocate: bool = False
    fairness: float = FAIRNESS
    triggers: Triggers = Triggers()
    network: Network | None = None


RECIPES = (
    Recipe(
        name="poise",
        order="value",
        score={
            "fit": 0.5,
            "speed": 0.3,
            "balance": 0.1,
            "steadiness": 0.06,
            "calm": 0.04,
            "prospects": 1.0,
            "images": 0.3,
        },
        reserve=True,
        preempt=Preemption(by="value"),
        elastic=True,
        reallocate=True,
    ),
    Recipe(name="fifo", order="arrival", overtake=False),
    Recipe(name="random", order="arrival", score={"random": 1.0}, spread=True),
    Recipe(name="round-robin", order="arrival", turns="equal"),
    Recipe(name="weighted-round-robin", order="arrival", turns="weighted"),
    Recipe(name="least-loaded", order="arrival", score={"load": 1.0}, spread=True),
    Recipe(name="sjf", order="run"),
    Recipe(name="srtf", order="remaining", preempt=Preemption(by="remaining", budget=100)),
    Recipe(name="edf", order="deadline", preempt=Preemption(by="deadline", budget=100)),
    Recipe(name="las", order="attained", preempt=Preemption(by="attained", budget=100)),
    Recipe(name="mlfq", order="level", preempt=Preemption(by="level", budget=100)),
)


class PreemptSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Rules of preemption, as written; fields that are left out have the values of the extended recipe."""

    by: str | msgspec.UnsetType = msgspec.UNSET
    min_run: Quantity | msgspec.UnsetType = msgspec.UNSET
    budget: int | msgspec.UnsetType = msgspec.UNSET
    at_once: int | msgspec.UnsetType = msgspec.UNSET


class TriggersSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Events that force a round, as written: shares as `90%`, times as `10s`; fields that are left out keep their
    values.
    """

    failed_checks: int | msgspec.UnsetType = msgspec.UNSET
    response_above: Quantity | msgspec.UnsetType = msgspec.UNSET
    use_above: Quantity | msgspec.UnsetType = msgspec.UNSET
    use_for: Quantity | msgspec.UnsetType = msgspec.UNSET
    hot_above: Quantity | msgspec.UnsetType = msgspec.UNSET
    cool_below: Quantity | msgspec.UnsetType = msgspec.UNSET
    hot_for: Quantity | msgspec.UnsetType = msgspec.UNSET
    settles: Quantity | msgspec.UnsetType = msgspec.UNSET


class PolicySpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file. `preempt: null` disables preemption; omitted fields have the values of the extended recipe."""

    kind: str = ""
    name: str = ""
    extends: str = ""
    order: str | dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    score: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    spread: bool | msgspec.UnsetType = msgspec.UNSET
    turns: str | msgspec.UnsetType = msgspec.UNSET
    overtake: bool | msgspec.UnsetType = msgspec.UNSET
    reserve: bool | msgspec.UnsetType = msgspec.UNSET
    preempt: PreemptSpec | msgspec.UnsetType | None = msgspec.UNSET
    elastic: bool | msgspec.UnsetType = msgspec.UNSET
    reallocate: bool | msgspec.UnsetType = msgspec.UNSET
    fairness: float | msgspec.UnsetType = msgspec.UNSET
    triggers: TriggersSpec | msgspec.UnsetType = msgspec.UNSET
    weights: str | dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


def compile_recipe(
    document: Any, terms: Collection[str] = tuple(TERMS), rank_terms: Collection[str] = tuple(RANK_TERMS)
) -> Recipe:
    """Compile a parsed file; `terms` and `rank_terms` name those that are known. Raises `SpecError`."""
    found = Findings()
    spec = found.convert(document, PolicySpec)
    made = None if spec is None else _compile(spec, terms, rank_terms, found)
    found.check(_example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def _example(field: str) -> str:
    if field.startswith(("order.", "score.")):
        return f"{field.partition('.')[2]}: 0.5"
    name = field.rpartition(".")[2] if field else "kind"
    return _EXAMPLES.get(name) or _EXAMPLES.get(field.partition(".")[0], _EXAMPLES["kind"])


def digest_of(recipe: Recipe, sources: Iterable[str] = ()) -> str:
    """Return eight hexadecimal digits that identify a recipe and the versions of its terms' packages."""
    told = msgspec.json.encode([recipe, *sources])
    return sha256(told).hexdigest()[:8]


def _compile(spec: PolicySpec, terms: Collection[str], rank_terms: Collection[str], found: Findings) -> Recipe:
    if spec.kind != "policy":
        found.add(
            SpecError("this file is not a policy", field="kind", need="policy", have=spec.kind, hint="kind: policy")
        )
    if not spec.name:
        found.add(SpecError("the policy has no name", field="name"))
    found.get(None, check_name, spec.name, "name")
    base = found.get(Recipe(name=""), _base, spec.extends)
    plain = ("spread", "overtake", "reserve", "elastic", "reallocate")
    changes: dict[str, Any] = {field: value for field in plain if (value := getattr(spec, field)) is not msgspec.UNSET}
    if spec.order is not msgspec.UNSET:
        changes["order"] = found.get("", _order, spec.order, rank_terms, found)
    if spec.score is not msgspec.UNSET:
        changes["score"] = _score(spec.score, terms, found)
    if spec.turns is not msgspec.UNSET:
        changes["turns"] = found.get("", _one_of, spec.turns, TURNS, "turns")
    if spec.fairness is not msgspec.UNSET:
        changes["fairness"] = found.get(0.0, _fairness, spec.fairness)
    if spec.preempt is None:
        changes["preempt"] = None
    elif spec.preempt is not msgspec.UNSET:
        changes["preempt"] = _preempt(spec.preempt, base.preempt or Preemption(), found)
    if spec.triggers is not msgspec.UNSET:
        changes["triggers"] = _triggers(spec.triggers, base.triggers, found)
    if spec.weights is not msgspec.UNSET:
        changes["network"] = found.get(None, _network, spec.weights)
    return msgspec.structs.replace(base, name=spec.name, **changes)


def _base(name: str) -> Recipe:
    if not name:
        return Recipe(name="")
    found = next((recipe for recipe in RECIPES if recipe.name == name), None)
    if found is None:
        raise _unknown(f"there is no recipe `{name}` to extend", name, [recipe.name for recipe in RECIPES], "extends")
    return found


def _order(order: str | dict[str, float], rank_terms: Collection[str], found: Findings) -> str | dict[str, float]:
    if isinstance(order, str):
        known = [*ORDERS, *PRESETS]
        if order not in known and order in rank_terms:
            raise SpecError(
                f"`{order}` is a term, and terms in an order need weights", field="order", have=order,
                hint=f"order: {{{order}: 1}}",
            )  # fmt: skip
        return _one_of(order, known, "order")
    return _weights(order, rank_terms, "order", found)


def _fairness(fairness: float) -> float:
    if not 0 <= fairness <= 1:
        raise SpecError(
            "fairness is out of range", code="E103", field="fairness", need="from 0 to 1", have=shown(fairness),
            hint="fairness: 0.5",
        )  # fmt: skip
    return fairness


def _score(score: dict[str, float], terms: Collection[str], found: Findings) -> dict[str, float]:
    weights = _weights(score, terms, "score", found)
    if not (total := sum(weights.values())) > 0:
        what = "the weights of a score must add up to more than 0"
        found.add(SpecError(what, code="E103", field="score", need="more than 0", have=f"{total:g}"))
    return weights


def _weights(weights: Mapping[str, float], known: Collection[str], field: str, found: Findings) -> dict[str, float]:
    """Finite weights of known terms."""
    if not 1 <= len(weights) <= MAX_TERMS:
        need, have, what = f"1 to {MAX_TERMS}", str(len(weights)), "the number of terms is out of range"
        found.add(SpecError(what, code="E103", field=field, need=need, have=have))
    return {name: found.get(0.0, _weight, name, weight, known, f"{field}.{name}") for name, weight in weights.items()}


def _weight(name: str, weight: float, known: Collection[str], at: str) -> float:
    if name not in known:
        raise _unknown(f"there is no term `{name}`", name, known, at)
    if not abs(weight) <= MAX_WEIGHT:  # also true for nan
        raise SpecError(
            "the weight is out of range", code="E103", field=at, need=f"from {-MAX_WEIGHT:.0f} to {MAX_WEIGHT:.0f}",
            have=shown(weight), hint=f"{name}: 0.5",
        )  # fmt: skip
    return weight


def _network(weights: str | dict[str, Any] | None) -> Network | None:
    """Return the network in a document; its file was read where the document was."""
    if weights is None:
        return None
    if isinstance(weights, str):
        raise SpecError(
            "a file of weights is read where the policy file is", field="weights", have=weights,
            need="the content of the file", hint="`poise policy set FILE.yaml` reads both",
        )  # fmt: skip
    try:
        network = convert(weights, Network)
        check(network)
    except (msgspec.ValidationError, ValueError) as error:
        raise SpecError(f"the weights are not a network: {error}", field="weights", hint="`poise learn`") from None
    return network


def _triggers(spec: TriggersSpec, base: Triggers, found: Findings) -> Triggers:
    changes: dict[str, int] = {}
    for field in TriggersSpec.__struct_fields__:
        value, at = getattr(spec, field), f"triggers.{field}"
        if value is msgspec.UNSET:
            continue
        if field == "failed_checks":
            found.get(None, check_count, value, 1, at)
            changes[field] = value
        elif field in ("use_above", "hot_above", "cool_below"):
            changes[field] = found.get(0, parse_or_raise, parse_share, value, at, 1000)
        else:
            changes[field] = found.get(0, parse_or_raise, parse_duration, value, at, MAX_DURATION)
    made = msgspec.structs.replace(base, **changes)
    if made.cool_below > made.hot_above:
        what = "a node cools below the share above which it is hot"
        need, have = f"at most {made.hot_above / 10:g}%", f"{made.cool_below / 10:g}%"
        error = SpecError(what, code="E103", field="triggers.cool_below", need=need, have=have)
        found.add(error, "triggers.hot_above")
    return made


def _preempt(spec: PreemptSpec, base: Preemption, found: Findings) -> Preemption:
    changes: dict[str, Any] = {}
    if spec.by is not msgspec.UNSET:
        changes["by"] = found.get("", _one_of, spec.by, YIELDS_BY, "preempt.by")
    if spec.min_run is not msgspec.UNSET:
        changes["min_run"] = found.get(0, parse_or_raise, parse_duration, spec.min_run, "preempt.min_run", MAX_DURATION)
    for field, least in (("budget", 0), ("at_once", 1)):
        value = getattr(spec, field)
        if value is not msgspec.UNSET:
            found.get(None, check_count, value, least, f"preempt.{field}")
            changes[field] = value
    return msgspec.structs.replace(base, **changes)


def _one_of(word: str, known: Collection[str], field: str) -> str:
    if word not in known:
        raise _unknown(f"`{word}` is not known here", word, known, field)
    return word


def _unknown(message: str, word: str, known: Collection[str], field: str) -> SpecError:
    words = ", ".join(known)
    return SpecError(message, field=field, have=word, need=words, hint=near(word, known) or f"known: {words}")


_EXAMPLES = {
    "kind": "kind: policy",
    "name": "name: ours",
    "extends": "extends: poise",
    "order": "order: {urgency: 0.7, waiting: 0.3}",
    "score": "score: {fit: 0.7, balance: 0.3}",
    "spread": "spread: true",
    "turns": "turns: weighted",
    "overtake": "overtake: true",
    "reserve": "reserve: true",
    "preempt": "preempt: {by: class, min_run: 30s, budget: 3}",
    "by": "by: class",
    "min_run": "min_run: 30s",
    "budget": "budget: 3",
    "at_once": "at_once: 16",
    "elastic": "elastic: true",
    "reallocate": "reallocate: true",
    "fairness": "fairness: 0.5",
    "triggers": "triggers: {use_above: 90%, use_for: 10s}",
    "failed_checks": "failed_checks: 3",
    "response_above": "response_above: 200ms",
    "use_above": "use_above: 90%",
    "use_for": "use_for: 10s",
    "hot_above": "hot_above: 80%",
    "cool_below": "cool_below: 70%",
    "hot_for": "hot_for: 30s",
    "settles": "settles: 5s",
    "weights": "weights: learned.npz",
}
