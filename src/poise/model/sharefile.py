"""Compile a file of fair shares into the tree.

    kind: shares
    half_life: 7d
    shares:
      - {tenant: research, guaranteed: {gpu: 8}, weight: 2}
      - {tenant: product, guaranteed: {H100: 4}, limit: {gpu: 16}}
      - {project: search, in: product, weight: 3}
      - {user: ann, in: search}

`compile_shares` raises `SpecError` with every error in the file.
"""

from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.catalogue import models_named
from poise.model.document import Findings, near, shown
from poise.model.fields import MAX_CPU, Quantity, parse_or_raise
from poise.model.fleetfile import parse_price
from poise.model.share_tree import CPU, GPU, HALF_LIFE, OTHERS, WEIGHT, Amounts, Kind, ShareNode, ShareTree
from poise.model.spec import check_name
from poise.units import DAY, HOUR, parse_cpu, parse_duration

LEAST_HALF_LIFE, MOST_HALF_LIFE = HOUR, 365 * DAY
MAX_SHARES = 5_000
MAX_DEPTH = 8
MAX_WEIGHT = 1_000_000
MAX_PRICE = 10**12


class ShareSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"within": "in"}):
    """One node of the tree, as written."""

    group: str = ""
    tenant: str = ""
    project: str = ""
    user: str = ""
    name: str = ""
    within: str = ""
    weight: float = 1
    guaranteed: dict[str, Quantity] = {}
    limit: dict[str, Quantity] = {}
    lends: bool = True


class SharesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A file of shares, as written."""

    kind: str
    shares: list[ShareSpec]
    half_life: Quantity = "7d"
    prices: dict[str, Quantity] = {}


def compile_shares(document: Any) -> ShareTree:
    """Compile a parsed file. Raises `SpecError` with every error in it."""
    found = Findings()
    spec = found.convert(document, SharesSpec)
    tree = ShareTree() if spec is None else _compile(spec, found)
    found.check(_example)
    return tree


def _example(field: str) -> str:
    return {
        "kind": "kind: shares",
        "half_life": "half_life: 7d",
        "prices": "prices: {H100: 4.1, T4: 0.35}",
        "weight": "weight: 2",
        "guaranteed": "guaranteed: {gpu: 8}",
        "limit": "limit: {gpu: 16}",
        "in": "in: research",
        "name": "name: ann-of-search",
    }.get(field.rpartition(".")[2], "{tenant: research, guaranteed: {gpu: 8}, weight: 2}")


def _compile(spec: SharesSpec, found: Findings) -> ShareTree:
    if spec.kind != "shares":
        found.add(SpecError("this file has no shares", field="kind", need="shares", have=spec.kind))
    life = found.get(HALF_LIFE, parse_or_raise, parse_duration, spec.half_life, "half_life", MOST_HALF_LIFE)
    if life < LEAST_HALF_LIFE:
        found.add(
            SpecError("the half-life is too short", field="half_life", need="at least 1h", have=str(spec.half_life))
        )
    if len(spec.shares) > MAX_SHARES:
        what, need = "there are too many shares", f"at most {MAX_SHARES}"
        found.add(SpecError(what, field="shares", need=need, have=str(len(spec.shares))))
        return ShareTree()
    prices = {model: found.get(0, _price, price, f"prices.{model}") for model, price in spec.prices.items()}
    named = [_named(one, f"shares[{place}]", found) for place, one in enumerate(spec.shares)]
    if not found:
        _check_places(spec, named, found)
    if found:
        return ShareTree()
    nodes = _ordered(spec, named, found)
    _check_sums(nodes, spec, found)
    return ShareTree(tuple(nodes), life, prices)


_Named = tuple[str, Kind, str]
"""Name, kind, and the group, tenant, project or user it stands for."""


def _named(spec: ShareSpec, at: str, found: Findings) -> _Named:
    """Return the name and the kind of a node; add errors in its own fields to `found`."""
    kinds: tuple[Kind, ...] = ("group", "tenant", "project", "user")
    said = [(kind, str(getattr(spec, kind))) for kind in kinds if getattr(spec, kind)]
    if len(said) != 1:
        have = ", ".join(kind for kind, _ in said) or "none of them"
        found.add(SpecError("a share is of one", field=at, need="group, tenant, project or user", have=have))
        return "", "group", ""
    kind, of = said[0]
    if not (kind == "user" and 0 < len(of) <= 63 and of.isprintable() and "/" not in of):
        found.get(None, check_name, of, f"{at}.{kind}")
    name = spec.name or of
    found.get(None, check_name, name, f"{at}.name")
    if not 0 <= spec.weight <= MAX_WEIGHT:  # also refuses nan
        what, need = "a weight is not negative", f"from 0 to {MAX_WEIGHT}"
        found.add(SpecError(what, code="E103", field=f"{at}.weight", need=need, have=shown(spec.weight)))
    for field, amounts in (("guaranteed", spec.guaranteed), ("limit", spec.limit)):
        for model, amount in amounts.items():
            found.get(0, parse_or_raise, parse_cpu, amount, f"{at}.{field}.{model}", MAX_CPU)
    return name, kind, of


def _check_places(spec: SharesSpec, named: list[_Named], found: Findings) -> None:
    """Check that names are unique, that every parent exists and has a suitable kind, and that there is no cycle."""
    of_name: dict[str, int] = {}
    for place, (name, _, _) in enumerate(named):
        if name in of_name or (name == OTHERS and named[place][1] != "group"):
            hint = f"name: {name}-2"
            found.add(SpecError(f"the name `{name}` is used twice", code="E107", field=f"shares[{place}]", hint=hint))
        of_name[name] = place
    above = {"group": ("group",), "tenant": ("group",), "project": ("tenant", "project"), "user": ("tenant", "project")}
    for place, (one, (name, kind, _)) in enumerate(zip(spec.shares, named, strict=True)):
        at = f"shares[{place}].in"
        if not one.within:
            if kind in ("project", "user"):
                need = f"the tenant or project that `{name}` is in"
                found.add(SpecError(f"a {kind} is in a tenant", field=at, need=need, have="nothing"))
            continue
        if one.within not in of_name:
            what, hint = f"there is no share `{one.within}`", near(one.within, of_name)
            found.add(SpecError(what, code="E105", field=at, have=one.within, hint=hint))
        elif named[of_name[one.within]][1] not in above[kind]:
            need, have = " or ".join(above[kind]), f"{named[of_name[one.within]][1]} `{one.within}`"
            found.add(SpecError(f"a {kind} cannot be in that", field=at, need=need, have=have))
    if found:
        return
    for place, (name, _, _) in enumerate(named):
        path = [name]
        while within := spec.shares[of_name[path[-1]]].within:
            path.append(within)
            if within == name:
                what, have = "the shares have a cycle", " in ".join(path)
                found.add(SpecError(what, code="E106", field=f"shares[{place}].in", have=have))
                break
            if len(path) > MAX_DEPTH:
                if within not in path[:-1]:
                    what, need = "the shares are too deep", f"at most {MAX_DEPTH} levels"
                    found.add(SpecError(what, field=f"shares[{place}].in", need=need, have=" in ".join(path)))
                break


def _ordered(spec: SharesSpec, named: list[_Named], found: Findings) -> list[ShareNode]:
    """Return the nodes, each after its parent, with a node for all others next to those that name somebody."""
    inside: dict[str, list[int]] = {}
    for place, one in enumerate(spec.shares):
        inside.setdefault(one.within, []).append(place)
    nodes: list[ShareNode] = []
    seen: dict[tuple[int, Kind, str], int] = {}

    def add(within: str, parent: int) -> None:
        for place in inside.get(within, ()):
            one, (name, kind, of) = spec.shares[place], named[place]
            key = (-1 if kind == "tenant" else parent, kind, of)
            if kind != "group" and seen.setdefault(key, place) != place:
                what = f"{kind} `{of}` has two shares in one place"
                found.add(SpecError(what, code="E107", field=f"shares[{place}].{kind}", hint="remove one of them"))
            nodes.append(
                ShareNode(
                    name=name,
                    kind=kind,
                    of=of,
                    parent=parent,
                    weight=round(one.weight * WEIGHT),
                    guaranteed={_model(model): parse_cpu(amount) for model, amount in one.guaranteed.items()},
                    limit={_model(model): parse_cpu(amount) for model, amount in one.limit.items()},
                    lends=one.lends,
                )
            )
            add(name, len(nodes) - 1)
        if parent < 0:
            nodes.append(ShareNode(name=OTHERS, kind="others"))
        elif nodes[parent].kind != "group" and within in inside:
            nodes.append(ShareNode(name=f"{within}.{OTHERS}", kind="others", parent=parent))

    add("", -1)
    return _with_sums(nodes)


def _with_sums(nodes: list[ShareNode]) -> list[ShareNode]:
    """Set the guarantee of a node without its own to the sum of its children's guarantees."""
    made = list(nodes)
    for place in range(len(made) - 1, -1, -1):
        if not made[place].guaranteed:
            total: Amounts = {}
            for below in made[place + 1 :]:
                if below.parent == place:
                    for model, amount in below.guaranteed.items():
                        total[model] = total.get(model, 0) + amount
            if total:
                made[place] = msgspec.structs.replace(made[place], guaranteed=total)
    return made


def _check_sums(nodes: list[ShareNode], spec: SharesSpec, found: Findings) -> None:
    """Check that no node is guaranteed less than the sum of its children."""
    places = {name: place for place, name in enumerate(_names_of(spec))}
    promised: list[Amounts] = [{} for _ in nodes]
    for node in nodes:
        if node.parent >= 0:
            for model, amount in node.guaranteed.items():
                promised[node.parent][model] = promised[node.parent].get(model, 0) + amount
    for node, below in zip(nodes, promised, strict=True):
        if not _holds(node.guaranteed, below):
            need = ", ".join(f"{amount / WEIGHT:g} {model}" for model, amount in below.items())
            have = ", ".join(f"{amount / WEIGHT:g} {model}" for model, amount in node.guaranteed.items())
            what = f"those in `{node.name}` are guaranteed more than it is itself"
            at = f"shares[{places[node.name]}].guaranteed" if node.name in places else "shares"
            found.add(SpecError(what, code="E103", field=at, need=need, have=have))


def _names_of(spec: SharesSpec) -> list[str]:
    return [one.name or one.group or one.tenant or one.project or one.user for one in spec.shares]


def _model(text: str) -> str:
    """Return the catalogue's name of a model, if the text denotes one."""
    entries = models_named(text) if text not in (GPU, CPU) else ()
    return entries[0].name if len(entries) == 1 else text


def _price(value: Quantity, field: str) -> int:
    """Return micro-dollars per hour."""
    return parse_or_raise(parse_price, value, field, MAX_PRICE)


def _holds(guaranteed: Amounts, below: Amounts) -> bool:
    """Whether a guarantee covers the sum of those below it."""
    beyond = sum(
        max(0, amount - guaranteed.get(model, 0)) for model, amount in below.items() if model not in (GPU, CPU)
    )
    return below.get(CPU, 0) <= guaranteed.get(CPU, 0) and beyond + below.get(GPU, 0) <= guaranteed.get(GPU, 0)
