"""Policies and terms of other packages: found by name, loaded only where their code may run, and tested before use.

Installed packages offer them as entry points (names in `pyproject.toml`, so that they are known without running the
package's code):

    poise.terms        node terms: a function of a `policy.score.Scoring` that returns one number for each row
    poise.rank_terms   rank terms: a function of a `Candidate` and a `Snapshot` that returns a number
    poise.policies     whole policies: an object with `name` and `decide(Snapshot) -> Plan`

`choose` reads names only; the control plane uses it. `build` imports the code and tests each part on a small view; the
worker uses it, and so does the command line that starts Poise.
"""

import os
import traceback
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from poise import __version__
from poise.decoding import convert
from poise.drivers.views import Unsound, check_plan, decode_plan, encode_plan
from poise.errors import Fault, InputError, PoiseError, SpecError
from poise.kernel.controller import Settings, with_latest_policy
from poise.model.decisions import Plan
from poise.model.document import near
from poise.model.events import Began
from poise.model.fleet import Fleet
from poise.model.profiles import DEFAULT_RUN, Estimate
from poise.model.resources import Device, Node, Shape
from poise.model.selection import Selection
from poise.model.views import Candidate, Snapshot
from poise.policy.divided import Split
from poise.policy.learned import policy_of as policy_of_recipe
from poise.policy.rank import RANK_TERMS, RankTerm
from poise.policy.recipe import Recipe, compile_recipe, digest_of
from poise.policy.rounds import Rounds
from poise.policy.score import TERMS, Scoring, Term
from poise.policy.split import PolicySettings, split_in, split_settings
from poise.policy.suites import POLICIES, ClusterPolicy
from poise.units import SECOND

TERM_GROUP, RANK_TERM_GROUP, POLICY_GROUP = "poise.terms", "poise.rank_terms", "poise.policies"
LEARNED = "learned"
"""The policy with shipped weights. It is a policy file."""

_SHIPPED: dict[str, Iterable[str]] = {
    TERM_GROUP: TERMS,
    RANK_TERM_GROUP: RANK_TERMS,
    POLICY_GROUP: (*POLICIES, LEARNED),
}
_WORDS = {TERM_GROUP: "node term", RANK_TERM_GROUP: "rank term", POLICY_GROUP: "policy"}

_TRY = "`docs/how-to/write-a-policy.md` shows how to try it in a small world"

FIELD = "--policy"
"""The flag of most commands for the policy."""

FILE_ENDINGS = (".yaml", ".yml", ".json")

T = TypeVar("T")


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chosen policy before its code is loaded: a recipe, or the name of a policy in Python.

    `label` is its name in log and status: a shipped policy's own name, or else a name and a digest. `foreign` means
    that it needs code that does not ship with Poise, and therefore its own process. `field` is the flag or field that
    named it, for errors. Or two policies: `trial` for the `nodes`, and `rest` for the rest of them.
    """

    label: str
    recipe: Recipe | None = None
    name: str = ""
    foreign: bool = False
    field: str = FIELD
    trial: "Choice | None" = None
    rest: "Choice | None" = None
    nodes: Selection = Selection()

    @property
    def split(self) -> "tuple[Choice, Choice] | None":
        """The policy on trial, and the one for the rest of the nodes; None if one policy decides for all."""
        return (self.trial, self.rest) if self.trial is not None and self.rest is not None else None


def choose(name: str, field: str = FIELD) -> Choice:
    """Return the policy of this name, shipped or from an installed package, or the one in the file of this name.

    Runs no foreign code. Raises `SpecError`, which names the `field` that had the name.
    """
    if name in POLICIES:
        return Choice(label=name, name=name, field=field)
    if name == LEARNED:
        from poise.drivers.weights import SHIPPED, with_weights

        document = {"kind": "policy", "name": LEARNED, "extends": "poise", "weights": SHIPPED.name}
        return choose_document(with_weights(document, SHIPPED.parent), field)
    if is_file(name):
        from poise.drivers.weights import with_weights  # here, since a shipped policy does without
        from poise.drivers.yamlfile import load_yaml

        return choose_document(with_weights(load_yaml(Path(name)), Path(name).parent), field)
    points = _points(POLICY_GROUP)
    if name in points:
        return Choice(label=f"{name}@{_digest(points[name])}", name=name, foreign=True, field=field)
    known = [*POLICIES, LEARNED, *points]
    raise SpecError(
        f"there is no policy `{name}`",
        field=field,
        have=name,
        need=f"{', '.join(known)}, or a file",
        hint=near(name, known) or f"known: {', '.join(known)}; or a file such as `policy.yaml`",
    )


def is_file(name: str) -> bool:
    """Return whether it is spelled like the name of a file, not of a policy."""
    return name.endswith(FILE_ENDINGS) or os.sep in name


def choose_document(document: Any, field: str = FIELD) -> Choice:
    """Return the policy that a parsed file describes. Raises `SpecError`."""
    terms, rank_terms = _points(TERM_GROUP), _points(RANK_TERM_GROUP)
    recipe = compile_recipe(document, [*TERMS, *terms], [*RANK_TERMS, *rank_terms])
    foreign = _foreign_points(Choice(label=recipe.name, recipe=recipe))
    digest = digest_of(recipe, [_source(point) for point in foreign])
    recipe = msgspec.structs.replace(recipe, name=f"{recipe.name}@{digest}")
    return Choice(label=recipe.name, recipe=recipe, foreign=bool(foreign), field=field)


def choose_rule_policy(rule: str, written: str | dict[str, Any], place: int) -> Choice:
    """Return the policy that a rule sets: a name, or the fields of a policy file, which is named after the rule by
    default. `place` is the index of the rule in its file. Raises `SpecError`.
    """
    field = f"rules[{place}].actions"
    if isinstance(written, str):
        return choose(written, field)
    return choose_document({"kind": "policy", "name": rule} | written, field)


def choose_split(trial: Choice, rest: Choice, nodes: Selection) -> Choice:
    """Return the choice of two policies, the first for these nodes."""
    label = split_settings(policy_settings(trial, 0), policy_settings(rest, 0), nodes)["policy"]
    return Choice(label=label, foreign=trial.foreign or rest.foreign, trial=trial, rest=rest, nodes=nodes)


def build(choice: Choice) -> ClusterPolicy:
    """Return the policy, ready to decide. Imports the code and tests it; raises `SpecError` with entry point and
    package if it is invalid.
    """
    if choice.split is not None:
        trial, rest = map(build, choice.split)
        return Split(choice.label, trial, rest, choice.nodes)
    recipe = choice.recipe
    if recipe is None:
        return _load(POLICY_GROUP, choice.name, _try_policy) if choice.foreign else POLICIES[choice.name]
    terms: dict[str, Term] = {
        name: TERMS[name] if name in TERMS else _load(TERM_GROUP, name, _try_term) for name in recipe.score
    }
    rank_terms: dict[str, RankTerm] = {
        name: RANK_TERMS[name] if name in RANK_TERMS else _load(RANK_TERM_GROUP, name, _try_rank_term)
        for name in _rank_terms_of(recipe)
    }
    return policy_of_recipe(recipe, terms, rank_terms)


def check_needs(choice: Choice) -> None:
    """Raise `SpecError` if a shipped policy needs a package that is not installed. Runs no foreign code."""
    for part in choice.split or ():
        check_needs(part)
    policy = POLICIES.get(choice.name) if choice.recipe is None else None
    if not isinstance(policy, Rounds):
        return
    try:
        policy.check()
    except InputError as error:
        raise SpecError(
            f"the policy `{choice.name}` needs a package that is not installed", field=choice.field,
            need="highspy, which solves linear programs", have="no highspy",
            hint=f"`{error.record.hint}`, or a policy that needs none, such as `--policy fifo`",
        ) from error  # fmt: skip


def tried(choice: Choice) -> ClusterPolicy:
    """Return the policy, built for a simulation. If it raises, or returns an invalid plan, its `decide` raises a
    `PoiseError` with policy and place: there is no fallback policy here, because the results would not be its own.
    Raises `SpecError` if a required package is missing.
    """
    check_needs(choice)
    return _Tried(build(choice), choice)


class _Tried:
    """A policy whose failures become errors that name it."""

    def __init__(self, policy: ClusterPolicy, choice: Choice) -> None:
        self.name = policy.name
        self._policy = policy
        self._foreign, self._field = choice.foreign, choice.field

    def decide(self, view: Snapshot, /) -> Plan:
        try:
            plan = self._policy.decide(view)
            if not self._foreign:
                return plan
            plan = decode_plan(encode_plan(plan), view)
            check_plan(plan, view)
        except Unsound as error:
            raise self._failure(f"gave a plan that is not sound: {error}", "") from error
        except (Exception, SystemExit) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            raise self._failure(f"raised {type(error).__name__}: {error}", where) from error
        else:
            return plan

    def _failure(self, what: str, where: str) -> PoiseError:
        message = f"the policy `{self.name}` {what}"
        if self._foreign:
            return SpecError(message, field=self._field, have=where, hint=_TRY)
        return Fault(message, field=self._field, have=where, hint="use another one, such as `--policy fifo`")


def code_of(choice: Choice) -> str:
    """Return a digest of the code by which this policy decides: Poise's models and policies, and the files of the
    foreign packages that it names. Runs no code of these.
    """
    if choice.split is not None:
        return str(policy_settings(choice, 0)["code"])
    package = Path(__file__).parents[1]
    folders = (package / "policy", package / "model", package / "kernel" / "ledger")
    files = [package / "kernel" / "verify.py", *(file for folder in folders for file in folder.glob("*.py"))]
    for point in _foreign_points(choice):
        files += _files_of(point)
    digest = sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def policy_of(began: Began, *, anyway: bool = False) -> ClusterPolicy | str:
    """Return the policy of a control plane with this `Began` event, or the reason why it cannot be compared: it is not
    installed here, or its code has changed, unless that is to be ignored (`anyway`). Loads foreign code.
    """
    try:
        choice = choice_of(began)
        if not anyway and began.code != (code := code_of(choice)):
            then = began.code or "unknown"
            return (
                f"decided by Poise {began.version or '?'} with code {then}, and here it is {__version__} with {code}; "
                "`--anyway` compares them"
            )
        return tried(choice)
    except SpecError as error:
        return f"decided by `{began.policy}`: {error}"


def choice_of(began: Began | Settings | PolicySettings) -> Choice:
    """Return the policy that was chosen then. Raises `SpecError` if it is not available here."""
    if not began.recipe:
        return choose(began.policy.partition("@")[0])
    try:
        if (split := split_in(began.recipe)) is not None:
            return choose_split(choice_of(split.trial), choice_of(split.rest), split.nodes)
        recipe = convert(began.recipe, Recipe)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"its recipe is not known here: {error}", field="recipe", hint="`poise replay --policy NAME`"
        ) from None
    choice = Choice(label=recipe.name, recipe=recipe)
    return msgspec.structs.replace(choice, foreign=bool(_foreign_points(choice)))


def choice_before(before: dict[str, Any]) -> Choice:
    """Return the policy in the fields of `Configured`. Raises `SpecError` if it is not available here."""
    return choice_of(PolicySettings(policy=before["policy"], recipe=before["recipe"], code=before["code"]))


def policy_settings(choice: Choice, asked: float) -> dict[str, Any]:
    """Return the settings of a policy that was requested at `asked`, in seconds since 1970."""
    if choice.split is not None:
        trial, rest = (policy_settings(part, 0) for part in choice.split)
        return split_settings(trial, rest, choice.nodes) | {"asked": asked}
    recipe = msgspec.to_builtins(choice.recipe) if choice.recipe else {}
    return {"policy": choice.label, "recipe": recipe, "code": code_of(choice), "asked": asked}


def with_latest_policy_here(settings: Settings, began: Began | None) -> Settings:
    """Return the result of `with_latest_policy`, with the digest of the current code."""
    left = with_latest_policy(settings, began)
    if left is settings:
        return settings
    try:
        return msgspec.structs.replace(left, **policy_settings(choice_of(left), left.asked))
    except SpecError:  # it is not available here, which each round reports
        return left


def sample_view() -> Snapshot:
    """Return a view for testing parts: two nodes, one with a device, and one waiting unit."""
    nodes = [
        Node(name="sample-1", incarnation="1", cpu=8000, memory=32 * 2**30),
        Node(name="sample-2", incarnation="1", cpu=16000, memory=64 * 2**30, devices=(Device(index=0, memory=2**34),)),
    ]
    waiting = Candidate(
        unit="j1.main", job="j1", ordinal=1, priority=2, kind="sample", shape=Shape(), tasks=1, submitted=SECOND,
        ready=SECOND, tail=DEFAULT_RUN, queue="sample", expected=DEFAULT_RUN,
    )  # fmt: skip
    return Snapshot(
        revision=1, now=2 * SECOND, fleet=Fleet(nodes), candidates=(waiting,), backlog={"sample": 1}, profiles={}
    )


# --- inside ----------------------------------------------------------------------------------------------------------


def _foreign_points(choice: Choice) -> list[metadata.EntryPoint]:
    """Return the installed foreign entry points that a policy uses."""
    if choice.recipe is None:
        wanted = [(POLICY_GROUP, choice.name)]
    else:
        wanted = [*((TERM_GROUP, name) for name in choice.recipe.score)]
        wanted += [(RANK_TERM_GROUP, name) for name in _rank_terms_of(choice.recipe)]
    return [
        point
        for group, name in wanted
        if name not in _SHIPPED[group] and (point := _points(group).get(name)) is not None
    ]


def _files_of(point: metadata.EntryPoint) -> list[Path]:
    """Return the Python files of an entry point's package or module, without importing it."""
    found = find_spec(point.module.partition(".")[0])
    if found is None or found.origin is None:
        return []
    origin = Path(found.origin)
    return sorted(origin.parent.rglob("*.py")) if found.submodule_search_locations else [origin]


def _rank_terms_of(recipe: Recipe) -> Iterable[str]:
    return () if isinstance(recipe.order, str) else recipe.order


def _points(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name. Raises `SpecError` for a duplicate or shipped name."""
    found: dict[str, metadata.EntryPoint] = {}
    for point in sorted(metadata.entry_points(group=group), key=_source):
        shipped = point.name in _SHIPPED[group]
        if shipped or point.name in found:
            by = "Poise" if shipped else _source(found[point.name])
            raise _refused(
                group, point, f"{by} has one of that name already", "rename it, or remove one of the packages"
            )
        found[point.name] = point
    return found


def _load(group: str, name: str, attempt: Callable[[Any], str]) -> Any:
    """Import and test the object of an entry point: `attempt` returns the problem with it, or ""."""
    point = _points(group).get(name)
    if point is None:
        raise SpecError(
            f"the {_WORDS[group]} `{name}` is not installed any more", field=group, have=name,
            hint="install its package again, or choose another policy",
        )  # fmt: skip
    try:
        loaded = point.load()
    except Exception as error:  # a module may raise anything when it is imported
        problem = f"it cannot be imported: {type(error).__name__}: {error}"
        raise _refused(group, point, problem, f"`python -c 'import {point.module}'`") from error
    try:
        problem = attempt(loaded)
    except Exception as error:
        problem = f"it raised {type(error).__name__}: {error}"
    if problem:
        raise _refused(group, point, problem, "`docs/how-to/write-a-policy.md` shows one that works")
    return loaded


def _try_term(term: Any) -> str:
    if not callable(term):
        return f"it is a `{type(term).__name__}`, not a function of a Scoring"
    view = sample_view()
    fleet, shape = view.fleet, view.candidates[0].shape
    rows = np.arange(len(fleet))
    estimates = [Estimate(DEFAULT_RUN, DEFAULT_RUN, "default")] * len(fleet.models)
    given = cast(Term, term)(Scoring(fleet, rows, fleet.free, shape, estimates, view.seed))
    if np.shape(given) != rows.shape or not np.isfinite(given).all():
        return f"it gave {_short(given)} for 2 nodes, not one finite number for each"
    return ""


def _try_rank_term(term: Any) -> str:
    if not callable(term):
        return f"it is a `{type(term).__name__}`, not a function of a Candidate and a Snapshot"
    view = sample_view()
    given = term(view.candidates[0], view)
    if isinstance(given, bool) or not isinstance(given, int | float) or not isfinite(given):
        return f"it gave {_short(given)}, not a finite number"
    return ""


def _try_policy(policy: Any) -> str:
    if isinstance(policy, type):
        return f"it is the class `{policy.__name__}`, not an object: point at an instance"
    if not isinstance(getattr(policy, "name", None), str) or not policy.name:
        return "it has no `name`"
    if not callable(getattr(policy, "decide", None)):
        return "it has no function `decide`"
    view = sample_view()
    try:
        check_plan(decode_plan(encode_plan(policy.decide(view)), view), view)
    except Unsound as error:
        return f"its plan is not sound: {error}"
    return ""


def _refused(group: str, point: metadata.EntryPoint, problem: str, hint: str) -> SpecError:
    return SpecError(
        f"the {_WORDS[group]} `{point.name}` of {_source(point)} cannot be used: {problem}",
        field=f"{group}: {point.name} = {point.value}",
        hint=hint,
    )


def _source(point: metadata.EntryPoint) -> str:
    """Return the package and its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"


def _digest(point: metadata.EntryPoint) -> str:
    return digest_of(Recipe(name=point.name), [_source(point), point.value])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
