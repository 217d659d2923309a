"""Reports of reservations."""

from poise.kernel.ledger import Ledger, NodeState, ReservationState, UnitState
from poise.model.reports.tenants import ReservationReport
from poise.model.reservations import OPEN_END, Window, spot_names
from poise.model.tenants import Bearer
from poise.units import SECOND


def reservation_report(ledger: Ledger, of: ReservationState, now: int, bearer: Bearer) -> ReservationReport | None:
    """Report a reservation as its bearer may see it; None if it is over."""
    kept = of.reservation
    window = next(ledger.reservations.windows(kept.id, now), None)
    if window is None:
        return None
    begins = ledger.reservations.begins(kept.id)
    until = window.begins_at + kept.length
    report = ReservationReport(
        id=kept.id,
        begins=float(window.begins_at),
        ends=0.0 if kept.length >= OPEN_END else float(until),
        places=tuple(spot_names(window.spots).split(", ")),
        begun=window.begin <= now,
    )
    if not bearer.sees(kept.tenant):
        return report
    to_come = int((begins >= window.begins_at).sum()) - sum(at >= window.begins_at for at in of.released)
    return ReservationReport(
        id=report.id,
        begins=report.begins,
        ends=report.ends,
        places=report.places,
        begun=report.begun,
        name=kept.name,
        tenant=kept.tenant,
        maintenance=not kept.tenant,
        wants=kept.wants(),
        soft=not kept.firm,
        every=kept.rule,
        time_zone=kept.zone,
        windows=to_come,
        elsewhere=sum(int(at) >= window.begins_at for at in of.elsewhere),
        release_after=kept.release_after * SECOND,
        lacks=tuple(lacking(ledger, window)),
        without=tuple(float(at) for at in sorted({*kept.without, *of.released}) if at >= window.begins_at),
    )


def reservation_reports(ledger: Ledger, now: int, bearer: Bearer) -> list[ReservationReport]:
    """Report all reservations, the next to begin first."""
    reports = (reservation_report(ledger, of, now, bearer) for of in ledger.reservations.values())
    return sorted((one for one in reports if one is not None), key=_begins)


def work_on(ledger: Ledger, window: Window) -> list[tuple[str, UnitState, int]]:
    """Return the work on the places of a window: tenant, unit, number of the task."""
    found = []
    for spot in window.spots:
        for unit, index in ledger.active.on(spot.node) if spot.node in ledger.nodes else ():
            task = unit.tasks[index]
            if not task.leaving and (not spot.devices or not set(spot.devices).isdisjoint(task.devices)):
                found.append((ledger.jobs[unit.job].tenant, unit, index))
    return found


def others_on(ledger: Ledger, window: Window) -> bool:
    """Return whether work of others is on the places of a window."""
    return any(tenant != window.tenant for tenant, _, _ in work_on(ledger, window))


def lacking(ledger: Ledger, window: Window) -> list[str]:
    """Return the nodes of a window that cannot be used now."""
    found = []
    for spot in window.spots:
        state = ledger.nodes.get(spot.node)
        closed = state is not None and any(
            device.index in spot.devices and ledger.cordons.closes(spot.node, device) for device in state.node.devices
        )
        if state is None or closed or not (is_usable(state) or state.drained_for == window.reservation):
            found.append(spot.node)
    return found


def is_usable(state: NodeState) -> bool:
    """Return whether a node may be reserved without being named."""
    return state.status == "up" and not state.drained and not state.unfit


def _begins(report: ReservationReport) -> tuple[float, str]:
    return report.begins, report.id
