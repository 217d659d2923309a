"""The orders of fired rules to services, for their gateways."""

from poise.kernel.ledger import Ledger
from poise.kernel.rules import Engine
from poise.model.reports.services import ServiceOrder
from poise.model.rule_actions import Control, Mirror, Rescale


def orders(ledger: Ledger, engine: Engine) -> list[ServiceOrder]:
    """Return the orders in force. Services are named as in the rules."""
    found: list[ServiceOrder] = []
    for name, subject, firing in ledger.rules.firings():
        rule = engine.rule(name) if not firing.over else None
        for action in rule.actions if rule is not None else ():
            if action.name not in firing.actions:
                continue
            match action.value:
                case Rescale(service=service, by=by):
                    found.append(ServiceOrder(service=service or subject, rule=name, by=by))
                case Control(knob="replicas", of=service):
                    by = firing.before["control"]["value"]
                    found.append(ServiceOrder(service=service, rule=name, by=by))
                case Mirror(service=service, to=to, share=share):
                    found.append(ServiceOrder(service=service, rule=name, to=to, share=share / 1000))
    return found


__all__ = ["orders"]
