"""Promotions by rules: a policy that was better in shadow decides on trial, and then for good.

On trial it decides for a part of the nodes, or in some of the turns. What was in force before is recorded with the
firing, so that the log has all of it.
"""

from typing import Any, NamedTuple

from poise.errors import Conflict
from poise.kernel.ledger import Firing, Ledger
from poise.model.rule_actions import Promote
from poise.model.selection import check_selection
from poise.policy.split import check_divisible, split_settings, undivided


class Due(NamedTuple):
    """The policy that should decide now, in the fields of `Configured`, and why."""

    policy: dict[str, Any]
    why: str


def promotion(ledger: Ledger, rule: str, trial: Promote, now: int) -> dict[str, Any]:
    """Return the policies of a promotion and when it began, for its firing. Raises `Conflict` for a policy that was not
    better in shadow or cannot decide for a part of the nodes, and `SpecError` for nodes that do not exist.
    """
    new, better = ledger.rules.policies[rule], ledger.rules.shadow_better
    if new["policy"] not in better:
        have = ", ".join(better) or "none"
        what = f"{new['policy']} was not better in shadow"
        raise Conflict(what, field="policy", have=have, hint="`poise shadow report`")
    made = {"instead": new["policy"], "before": ledger.leader.now, "began": now}
    if trial.nodes is None:
        return made
    check_selection(trial.nodes, ledger.columns.fleet().nodes, "nodes")
    rest = undivided(ledger.leader.now)
    check_divisible(new["policy"], rest["policy"])
    return made | {"on_trial": split_settings(new, rest, trial.nodes)}


def due(ledger: Ledger, trial: Promote, new: dict[str, Any], firing: Firing, now: int) -> Due | None:
    """Return the policy that a standing promotion should set now; None if it is set already, or if somebody else has
    set another one since, such as the old one by a rollback.
    """
    leader, old, began = ledger.leader, firing.before["before"], firing.before["began"]
    wanted = _wanted(trial, new, firing, now - began)
    if leader.policy == wanted.policy["policy"] or leader.policy not in (old.get("policy"), *promoted(firing)):
        return None
    if leader.since > began and leader.is_set_by_user:
        return None
    return wanted


def _wanted(trial: Promote, new: dict[str, Any], firing: Firing, passed: int) -> Due:
    """Return the policy that decides when this much time of a promotion has passed."""
    old = firing.before["before"]
    if passed >= trial.length:
        policy, stage = new, "after its trial"
    elif trial.nodes is not None:
        policy, stage = firing.before.get("on_trial", old), f"on trial for {trial.nodes}"
    else:
        policy, stage = new if trial.is_turn(passed) else old, f"{trial.share / 10:g} % of the time on trial"
    return Due(policy, f"promotion of {new['policy']}, {stage}")


def promoted(firing: Firing) -> tuple[str, ...]:
    """Return the names, in the log, of the policies that a firing sets."""
    on_trial = firing.before.get("on_trial")
    return (firing.before["instead"], *([on_trial["policy"]] if on_trial else ()))
