"""The report of fair shares: held, borrowed and owed amounts, and the order of service."""

from collections import Counter

from poise.kernel.ledger import Ledger
from poise.model.reports.tenants import ShareReport, SharesReport
from poise.model.share_tree import CPU, GPU, WEIGHT, Amounts, unused_of
from poise.policy.entitled import Standing, ratio

NANO = 1e9
MICRO = 1e6


def shares_report(ledger: Ledger, now: int) -> SharesReport:
    """Report the shares in force, as of an instant."""
    view = ledger.shares.view(now)
    if view is None:
        return SharesReport()
    standing = Standing(view)
    waiting: Counter[str] = Counter()
    for queue in ledger.queues.values():
        for unit in queue.values():
            waiting[ledger.jobs[unit.job].leaf] += 1
    counts = [0] * len(view.tree.nodes)
    for leaf, count in waiting.items():
        for place in standing.path(leaf):
            counts[place] += count
    reports, depths = [], list[int]()
    for place, node in enumerate(view.tree.nodes):
        depths.append(depths[node.parent] + 1 if node.parent >= 0 else 0)
        beside = [other for other, of in enumerate(view.tree.nodes) if of.parent == node.parent]
        share, used = ratio(standing, place)
        reports.append(
            ShareReport(
                name=node.name,
                kind=node.kind,
                within=view.tree.nodes[node.parent].name if node.parent >= 0 else "",
                depth=depths[-1],
                weight=node.weight / WEIGHT,
                share=share,
                guaranteed=_amounts(node.guaranteed),
                limit=_amounts(node.limit),
                lends=node.lends,
                held=_amounts(view.held[place]),
                borrows=standing.rate(place) / NANO,
                debt=view.debts[place] / NANO,
                used=used,
                rank=1 + sum(_key(standing, other) < _key(standing, place) for other in beside),
                waiting=counts[place],
            )
        )
    models = sorted({device.model or device.kind for state in ledger.nodes.values() for device in state.node.devices})
    prices = {model: view.tree.price(model) / MICRO for model in [*models, CPU]}
    notes = tuple(note for note in (_overcommitted(ledger, standing),) if note)
    return SharesReport(shares=tuple(reports), half_life=view.tree.half_life, prices=prices, notes=notes)


def _key(standing: Standing, place: int) -> tuple[bool, int]:
    """Return the sort key of a node: nodes below their guarantee first, then those with the lowest level."""
    unused = unused_of(standing.nodes[place].guaranteed, standing.held[place])
    return not unused, standing.level(place)


def _overcommitted(ledger: Ledger, standing: Standing) -> str:
    """Return a note if the guarantees exceed the fleet; else empty."""
    there: Amounts = {}
    for state in ledger.nodes.values():
        for device in state.node.devices:
            model = device.model or device.kind
            there[model] = there.get(model, 0) + WEIGHT
    promised: Amounts = {}
    for node in standing.nodes:
        if node.parent < 0:
            for model, amount in node.guaranteed.items():
                if model != CPU:
                    promised[model] = promised.get(model, 0) + amount
    over = {model: amount for model, amount in promised.items() if model != GPU and amount > there.get(model, 0)}
    if not over and sum(promised.values()) > sum(there.values()):
        over = {GPU: sum(promised.values())}
        there = {GPU: sum(there.values())}
    told = [
        f"{amount / WEIGHT:g} {model} guaranteed, {there.get(model, 0) / WEIGHT:g} there"
        for model, amount in over.items()
    ]
    return "; ".join(told)


def _amounts(amounts: Amounts) -> dict[str, float]:
    return {model: amount / WEIGHT for model, amount in sorted(amounts.items())}
