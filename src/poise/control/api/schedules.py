"""Routes of schedules and reservations."""

from collections.abc import Callable

import msgspec

from poise.control.api.parts import OPERATOR, SUBMITTER, VIEWER, Parts
from poise.control.routes import Routes
from poise.drivers.calendar import shifts
from poise.drivers.system import Effort
from poise.errors import Conflict, Forbidden, InputError
from poise.kernel import messages
from poise.kernel.bookings import Accepted, find_reservation
from poise.kernel.reserved import reservation_report
from poise.kernel.visible import Sight
from poise.model.reports.jobs import ScheduleReport
from poise.model.reports.tenants import ReservationReport, ReservationsRequest
from poise.model.reservations import Zones, compile_reservations
from poise.model.tenants import Bearer
from poise.policy.suites import ClusterPolicy


class ScheduleChanged(msgspec.Struct, frozen=True):
    """The id of a schedule that was held, released or removed. The record is durable."""

    schedule: str


def add_routes(routes: Routes, parts: Parts) -> None:
    plane = parts.plane

    @routes.get("/v1/schedules", summary="Schedules: when they submit jobs, and how the last one ended", role=VIEWER)
    async def schedules(bearer: Bearer) -> list[ScheduleReport]:
        return Sight(await plane.settled(), bearer).schedules()

    @routes.post(
        "/v1/schedules/{name}/hold",
        summary="Put a schedule on hold: it submits no jobs; those that it has submitted go on",
        status=202,
        role=SUBMITTER,
    )
    async def hold_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.HoldSchedule(number, name, True, bearer)))

    @routes.post(
        "/v1/schedules/{name}/release",
        summary="Let a schedule go on that is on hold; what was due meanwhile is passed over",
        status=202,
        role=SUBMITTER,
    )
    async def release_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.HoldSchedule(number, name, False, bearer)))

    @routes.delete(
        "/v1/schedules/{name}",
        summary="Remove a schedule; its jobs stay",
        status=202,
        role=SUBMITTER,
    )
    async def remove_schedule(bearer: Bearer, name: str) -> ScheduleChanged:
        return ScheduleChanged(await plane.request(lambda number: messages.RemoveSchedule(number, name, bearer)))

    @routes.get("/v1/reservations", summary="Reservations, and their current or next window", role=VIEWER)
    async def reservations(bearer: Bearer) -> list[ReservationReport]:
        return Sight(await plane.settled(), bearer).reservations(plane.clock.now())

    @routes.post("/v1/reservations", summary="Reserve nodes or devices, all or none", status=202, role=OPERATOR)
    async def reserve(bearer: Bearer, data: ReservationsRequest) -> list[ReservationReport]:
        wanted = compile_reservations(data.document, Zones(plane.clock.wall(), shifts))
        for one in wanted:
            if not bearer.sees(one.tenant):
                raise Forbidden("this tenant is not yours", field="tenant", need=bearer.tenant, have=one.tenant)
        accepted: list[Accepted] = await plane.request(lambda number: messages.Reserve(number, wanted, bearer))
        ledger, now = await plane.settled(), plane.clock.now()
        known = {one.reservation.id: one.known for one in accepted}
        found = (reservation_report(ledger, ledger.reservations[name], now, bearer) for name in known)
        return [msgspec.structs.replace(one, known=known[one.id]) for one in found if one is not None]

    @routes.get(
        "/v1/reservations/{name}",
        summary="A reservation, and the chance that its places are free in time; takes some seconds",
        role=VIEWER,
    )
    async def reservation(bearer: Bearer, name: str) -> ReservationReport:
        async def ask() -> Callable[[ClusterPolicy], ReservationReport]:
            from poise.engine.keeping import chance_of

            ledger, now = await plane.settled(), plane.clock.now()
            of = find_reservation(ledger, name, bearer)
            report, fork = reservation_report(ledger, of, now, bearer), ledger.fork()
            if report is None:
                raise Conflict("the reservation is over", field="reservation", have=name, hint="`poise reserve`")
            window = next(fork.reservations.windows(report.id, now))

            def answer(policy: ClusterPolicy) -> ReservationReport:
                try:
                    chance = chance_of(fork, policy, window, now, Effort())
                except InputError:  # a fleet that is too large to simulate in time
                    return report
                return msgspec.structs.replace(report, chance=chance.thousandths, futures=chance.futures)

            return answer

        return await parts.thought_about(bearer, ask)

    @routes.delete("/v1/reservations/{name}", summary="Cancel a reservation", status=202, role=OPERATOR)
    async def cancel_reservation(bearer: Bearer, name: str) -> dict[str, str]:
        cancelled = await plane.request(lambda number: messages.CancelReservation(number, name, bearer))
        return {"reservation": cancelled}
