"""The calls of a client: one method for each route.

Every call is safe to repeat, because a submission carries a key.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from poise.client import streams
from poise.client.link import PATIENCE, THOUGHT, Link, T, current_home, part, quoted
from poise.client.submitting import Receipt, is_strict, new_key, submit_stream, submit_with_files, with_context
from poise.config import PAGE, Door, Home
from poise.drivers.reach import door_of
from poise.drivers.security import ASK, digest, new_secret, whole_token
from poise.errors import NotFound
from poise.model.captures import Capture, CaptureKind
from poise.model.incidents import IncidentReport
from poise.model.reports.access import PageReport, RefusalsReport, SignInCode, SignInReport, TokenReport, WhoReport
from poise.model.reports.demand import Backlog, DemandReport, Offer, Quote
from poise.model.reports.jobs import Changed, JobReport, JobStatus, PartReport, ScheduleReport
from poise.model.reports.nodes import Drained, NodeReport
from poise.model.reports.policies import PolicyReport, PolicyRequest, Promotion, ShadowReport
from poise.model.reports.questions import DeadlineForecast, Explanation, PlanReport, UnblockReport, WhyNot
from poise.model.reports.rules import RuleAnswer, RuleDone, RulesReport, RulesRequest
from poise.model.reports.services import EndpointsReport, OrdersReport
from poise.model.reports.status import ChangesReport, Overview, StatusReport
from poise.model.reports.streams import ExecLine, InputReport, LogLine
from poise.model.reports.tenants import (
    BudgetReport,
    BudgetsRequest,
    QuotaReport,
    ReservationReport,
    ReservationsRequest,
    SharesForeseen,
    SharesReport,
    SharesRequest,
)
from poise.model.served import GatewayNews
from poise.model.usage import NodeProfile

if TYPE_CHECKING:
    from poise.drivers.giving import Source

POLL = 30.0, 10.0
"""Longest wait for the end of a job in one request, in seconds; with several control planes, shorter."""


class _Cancelled(msgspec.Struct):
    tenants: dict[str, int]
    jobs: list[str]


class _Job(msgspec.Struct):
    job: str


class Client:
    """A client of the control plane of a home.

    >>> client = Client()        # doctest: +SKIP
    >>> client.wait(client.submit({"run": ["echo", "hello"]})).exit_code       # doctest: +SKIP
    0
    """

    def __init__(
        self, home: Home | Path | str | None = None, *, patience: float = PATIENCE, token: str | None = None
    ) -> None:
        """Create a client of the control plane of `home` (default: `POISE_HOME`, or `~/.poise`). It connects at the
        first call. After a lost connection it retries for `patience` seconds. `token` replaces the token of the home or
        the environment.

        Raises Denied if `token` is not a valid token.
        """
        self.home = home if isinstance(home, Home) else current_home(home)
        self._link = Link(self.home, patience, token if token is None else whole_token(token, "token", ASK))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def door(self) -> Door:
        """The address of the control plane that answered last."""
        return door_of(self.home, self._link.turn)

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        self._link.close()

    # --- calls -------------------------------------------------------------------------------------------------------

    def submit(
        self,
        spec: dict[str, Any],
        *,
        key: str = "",
        user: str = "",
        say: Callable[[str], None] | None = None,
        if_revision: int | None = None,
    ) -> str:
        """Submit a job and return its id once the job is durable.

        `key` is an idempotency key (default: a random one): a submission with the same key returns the first job.
        `user` is a display name. `say` is called with each note, for example that the job may be late. If the job has
        `sync`, its working tree is sent after all other checks have passed, without the parts that the control plane
        already has.

        Raises SpecError if the job is invalid or no node could run it. Raises Conflict if its name is taken, or if the
        state has changed since the revision `if_revision`.
        """
        key = key or new_key()
        accepted = submit_with_files(
            self._link,
            spec,
            say or (lambda note: None),
            lambda spec: self._submit(spec, key=key, user=user, if_revision=if_revision),
        )
        if say is not None and accepted.note:
            say(accepted.note)
        return accepted.job

    def gone_jobs(self, jobs: Sequence[str]) -> list[str]:
        """Return the ids among `jobs` that the control plane no longer knows. For nodes, which keep files of jobs."""
        return self._link.call("POST", "/v1/nodes/jobs", list[str], list(jobs))

    def ended_jobs(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return the statuses of those among these jobs, by id, that have ended; empty: the control plane no longer
        knows it.
        """
        return self._link.call("POST", "/v1/jobs/ended", dict[str, str], list(jobs))

    def serve_calls(self, spec: dict[str, Any], *, user: str = "") -> tuple[str, str]:
        """Submit a job that serves calls. Return its id and the key of its caller."""
        accepted = self._submit(spec, user=user)
        return accepted.job, accepted.caller_key

    def _submit(
        self, spec: dict[str, Any], *, key: str = "", user: str = "", if_revision: int | None = None
    ) -> Receipt:
        body = {"spec": with_context(spec, os.environ), "key": key or new_key(), "user": user}
        condition = "" if if_revision is None else f"?if_revision={if_revision}"
        timeout = THOUGHT if is_strict(spec) else PATIENCE
        return self._link.call("POST", f"/v1/jobs{condition}", Receipt, body, timeout=timeout)

    def jobs(
        self,
        *,
        everything: bool = False,
        statuses: Collection[JobStatus] = (),
        name: str = "",
        user: str = "",
        latest: int = 0,
    ) -> list[JobReport]:
        """List jobs in order of submission: the unfinished ones and the latest finished ones, or all jobs with
        `everything`.

        Filters: `statuses` keeps jobs with one of these statuses, `name` those whose name or id matches the pattern
        (`train-*`), `user` those of this user, and `latest` the latest N of them (0: all).
        """
        asked = [f"all={str(everything).lower()}", *_filters(statuses, name, user)]
        asked += [f"latest={latest}"] if latest else []
        pages = self._pages(f"/v1/jobs?{'&'.join(asked)}&", list[JobReport], lambda job: job.id, PAGE)
        return list(chain.from_iterable(pages))

    def job(self, name: str, *, wait: float = 0.0) -> JobReport:
        """Return one job by id or name, or some of its tasks. With `wait`, return once they have finished, or after
        that many seconds.

        Raises NotFound if there is no such job or task.
        """
        return self._link.call("GET", f"/v1/jobs/{part(name)}?wait={wait:g}", JobReport, timeout=wait + PATIENCE)

    def explain(self, name: str, *, everything: bool = False) -> Explanation:
        """Explain why a job waits and what would let it start, or why it was placed where it is, and list its past
        events. `everything` includes what is otherwise left out for length.

        Raises NotFound if there is no such job.
        """
        path = f"/v1/jobs/{part(name)}/explanation?all={str(everything).lower()}"
        return self._link.call("GET", path, Explanation, timeout=THOUGHT)

    def deadline(self, name: str) -> DeadlineForecast:
        """Return the probability that a job, or some of its tasks, meet their deadlines. The simulation takes some
        seconds.

        Raises Conflict if none of them has a deadline to come, and NotFound if there is no such job.
        """
        return self._link.call("GET", f"/v1/jobs/{part(name)}/deadline", DeadlineForecast, timeout=THOUGHT)

    def why_not(self, name: str, node: str) -> WhyNot:
        """Return every reason why a job is not on a node; if it fits there, return its score there.

        Raises NotFound if there is no such job or node, and Conflict if no part of the job waits or runs.
        """
        path = f"/v1/jobs/{part(name)}/why-not/{part(node, 'poise nodes')}"
        return self._link.call("GET", path, WhyNot, timeout=THOUGHT)

    def unblock(self, name: str) -> UnblockReport:
        """Return the smallest changes that would let a waiting job start now.

        Raises NotFound if there is no such job.
        """
        return self._link.call("GET", f"/v1/jobs/{part(name)}/unblock", UnblockReport, timeout=THOUGHT)

    def plan(self, spec: dict[str, Any], *, user: str = "", everything: bool = False) -> PlanReport:
        """Report the effects of submitting a job now, without submitting it. `user` is a display name. `everything`
        includes what is otherwise left out for length.

        Raises SpecError if the job is invalid or no node could run it, and Conflict if its name is taken.
        """
        path = f"/v1/plan?all={str(everything).lower()}"
        return self._link.call("POST", path, PlanReport, {"spec": spec, "user": user}, timeout=THOUGHT)

    def wait(self, name: str, timeout: float | None = None) -> JobReport:
        """Wait until a job, or some of its tasks, have finished, or until `timeout` seconds have passed (None: no
        limit). Return the report of the job; its `exit_code` is None if the time has run out.

        Raises NotFound if there is no such job or task.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            longest = POLL[self._link.several]
            left = longest if deadline is None else min(longest, deadline - time.monotonic())
            report = self.job(name, wait=max(0.0, left))
            if report.exit_code is not None or left <= 0:
                return report

    def cancel(self, name: str) -> str:
        """Cancel a job, or some of its tasks, and return its full name.

        Raises NotFound if there is no such job or task, and Conflict if it is already over or cannot be cancelled
        alone, such as one member of a gang.
        """
        return self._link.call("POST", f"/v1/jobs/{part(name)}/cancel", _Job).job

    def hold(self, name: str) -> str:
        """Put a job on hold, so that its waiting tasks do not start, and return its id.

        Raises NotFound if there is no such job. Raises Conflict if it is over or serves calls, or if `name` is only a
        part of a job.
        """
        return self._link.call("POST", f"/v1/jobs/{part(name)}/hold", _Job).job

    def release(self, name: str) -> str:
        """Release a job that is on hold and return its id. Raises the same errors as `hold`."""
        return self._link.call("POST", f"/v1/jobs/{part(name)}/release", _Job).job

    def resume(self, name: str) -> list[str]:
        """Resume the suspended tasks of a job. Return the reasons why some of them wait for their resources; they
        resume once these are free. Raises NotFound if there is no such job.
        """
        return self._link.call("POST", f"/v1/jobs/{part(name)}/resume", dict[str, list[str]])["waits"]

    def change(self, name: str, spec: dict[str, Any]) -> Changed:
        """Change fields of a job, or of some of its tasks: `{"priority": "high"}`. Return the number of changed units,
        and the number of running ones that keep their old values until they restart.

        Raises NotFound if there is no such job or task, Conflict if it is already over or the field cannot be changed,
        and SpecError if a value is invalid or no node could run the result.
        """
        return self._link.call("POST", f"/v1/jobs/{part(name)}/change", Changed, {"spec": spec})

    def retry(self, name: str) -> str:
        """Submit the unfinished part of an ended job as a new job, and return the id of the new job.

        Raises NotFound if there is no such job, and Conflict if it has not ended, has nothing left to do, or cannot be
        repeated.
        """
        return self._link.call("POST", f"/v1/jobs/{part(name)}/retry", _Job).job

    def remove(self, *jobs: str) -> list[str]:
        """Remove ended jobs, by id or name, with their output, values and checkpoints, and return their ids. Either all
        of them are removed or none.

        Raises NotFound if one does not exist, and Conflict if one has not ended.
        """
        return self._link.call("POST", "/v1/remove", dict[str, list[str]], {"jobs": jobs}, timeout=THOUGHT)["removed"]

    def remove_all(
        self, *, statuses: Collection[JobStatus] = (), name: str = "", user: str = "", older_than: str | float = 0
    ) -> list[str]:
        """Remove all ended jobs that this token may see and that match every filter, and return their ids.

        Filters: `statuses` matches jobs with one of these statuses, `name` those whose name or id matches the pattern,
        `user` those of this user, and `older_than` those that ended at least that long ago (seconds, or `7d`).
        """
        asked = {"all": True, "statuses": statuses, "name": name, "user": user, "older_than": older_than}
        return self._link.call("POST", "/v1/remove", dict[str, list[str]], asked, timeout=THOUGHT)["removed"]

    def cancel_all(self, *, statuses: Collection[JobStatus] = (), name: str = "", user: str = "") -> list[str]:
        """Cancel all unfinished jobs of the token's tenant that match every filter. Return their ids once the
        cancellation is durable.

        Filters: `statuses` matches jobs with one of these statuses, `name` those whose name or id matches the pattern,
        and `user` those of this user.
        """
        asked = "&".join(_filters(statuses, name, user))
        return self._link.call("POST", f"/v1/cancel?{asked}", _Cancelled, timeout=THOUGHT).jobs

    def cancel_all_tenants(self) -> dict[str, int]:
        """Cancel all unfinished jobs of all tenants. Return the number of jobs by tenant once the cancellation is
        durable.

        Raises Forbidden unless the token has the role `operator` or `admin`.
        """
        return self._link.call("POST", "/v1/cancel?all_tenants=true", _Cancelled, timeout=THOUGHT).tenants

    def nodes(self) -> list[NodeReport]:
        """List all nodes, sorted by name."""
        return list(chain.from_iterable(self.pages_of_nodes(PAGE)))

    def pages_of_nodes(self, size: int) -> Iterator[list[NodeReport]]:
        """Yield all nodes, sorted by name, at most `size` from each request; the last page may be empty."""
        return self._pages("/v1/nodes?", list[NodeReport], lambda node: node.name, size)

    def profiles(self, node: str = "") -> list[NodeProfile]:
        """Return the load history of one node, or of the first 256 nodes. Raises NotFound if there is no such node."""
        return self._link.call("GET", f"/v1/profiles?node={quoted(node)}", list[NodeProfile])

    def incidents(self) -> list[IncidentReport]:
        """List the incidents that this token may see, oldest first: all open ones and the latest closed ones."""
        return self._link.call("GET", "/v1/incidents", list[IncidentReport])

    def incident(self, name: str) -> IncidentReport:
        """Return one incident by its id. Raises NotFound if there is no such incident."""
        return self._link.call("GET", f"/v1/incidents/{part(name, 'poise incidents')}", IncidentReport)

    def schedules(self) -> list[ScheduleReport]:
        """List the schedules that this token may see. To create a schedule, submit a job with `every` or `cron`."""
        return self._link.call("GET", "/v1/schedules", list[ScheduleReport])

    def hold_schedule(self, name: str) -> str:
        """Pause a schedule, by id or name, so that it submits no jobs. Return its id.

        Raises NotFound if there is no such schedule.
        """
        return self._link.call("POST", f"/v1/schedules/{part(name, 'poise schedules')}/hold", dict[str, str])[
            "schedule"
        ]

    def release_schedule(self, name: str) -> str:
        """Resume a paused schedule, by id or name. Jobs that were due while it was paused are not submitted. Return its
        id.

        Raises NotFound if there is no such schedule.
        """
        return self._link.call("POST", f"/v1/schedules/{part(name, 'poise schedules')}/release", dict[str, str])[
            "schedule"
        ]

    def remove_schedule(self, name: str) -> str:
        """Remove a schedule, by id or name; its jobs stay. Return its id.

        Raises NotFound if there is no such schedule.
        """
        return self._link.call("DELETE", f"/v1/schedules/{part(name, 'poise schedules')}", dict[str, str])["schedule"]

    def quotas(self) -> list[QuotaReport]:
        """List the quotas of tenants and how much of each is in use."""
        return self._link.call("GET", "/v1/quotas", list[QuotaReport])

    def set_quota(self, tenant: str, bounds: Mapping[str, Any] | None) -> str:
        """Set the quota of a tenant (`cpu`, `memory`, `gpu`; `hours` with other amounts in a `time_zone`), or remove it
        if `bounds` is None. Return a note, for example that the tenant is unknown; usually empty.
        """
        method = "DELETE" if bounds is None else "PUT"
        return self._link.call(method, f"/v1/quotas/{part(tenant, 'poise quota')}", dict[str, str], bounds).get(
            "note", ""
        )

    def shares(self) -> SharesReport:
        """Return the fair shares in force and the current use of each."""
        return self._link.call("GET", "/v1/shares", SharesReport)

    def set_shares(self, document: Mapping[str, Any]) -> SharesReport:
        """Set the fair shares to the content of a shares file, and return the result.

        Raises SpecError if the content is invalid, and Forbidden if the role of the token does not allow it.
        """
        return self._link.call("PUT", "/v1/shares", SharesReport, SharesRequest(document=dict(document)))

    def reservations(self) -> list[ReservationReport]:
        """List the reservations. Of those of other tenants, only the times and places are visible."""
        return self._link.call("GET", "/v1/reservations", list[ReservationReport])

    def reservation(self, name: str) -> ReservationReport:
        """Return a reservation, by id or name, with the chance that its places are free when it begins.

        Raises NotFound if there is no such reservation.
        """
        return self._link.call(
            "GET", f"/v1/reservations/{part(name, 'poise reserve')}", ReservationReport, timeout=THOUGHT
        )

    def reserve(self, document: dict[str, Any]) -> list[ReservationReport]:
        """Reserve nodes or devices, given as the content of a reservations file: all or none. A reservation of the same
        tenant and name is replaced.

        Raises SpecError, Conflict if something does not fit, and Forbidden unless this token is an operator's.
        """
        request = ReservationsRequest(document=document)
        return self._link.call("POST", "/v1/reservations", list[ReservationReport], request)

    def cancel_reservation(self, name: str) -> str:
        """Cancel a reservation, by id or name. Return its id.

        Raises NotFound if there is no such reservation.
        """
        return self._link.call("DELETE", f"/v1/reservations/{part(name, 'poise reserve')}", dict[str, str])[
            "reservation"
        ]

    def foresee_shares(self, document: Mapping[str, Any]) -> SharesForeseen:
        """Forecast the waiting time of pending work under other fair shares, given as the content of a shares file.
        Nothing changes.

        Raises SpecError if the content is invalid.
        """
        request = SharesRequest(document=dict(document))
        return self._link.call("POST", "/v1/shares/foreseen", SharesForeseen, request, timeout=THOUGHT)

    def policy(self) -> PolicyReport:
        """Return the current scheduling policy."""
        return self._link.call("GET", "/v1/policy", PolicyReport)

    def set_policy(self, policy: str | Mapping[str, Any]) -> PolicyReport:
        """Set the scheduling policy, by its name or as the content of a policy file, and return it.

        Raises SpecError if there is no such policy or the content is invalid.
        """
        return self._link.call("PUT", "/v1/policy", PolicyReport, _policy_request(policy), timeout=THOUGHT)

    def rules(self) -> RulesReport:
        """List the rules in force, with the state of each and its latest firings."""
        return self._link.call("GET", "/v1/rules", RulesReport)

    def set_rules(self, document: Mapping[str, Any]) -> RulesReport:
        """Set the rules to the content of a rules file, and return the result.

        Raises SpecError if the content is invalid, and Forbidden if the role of the token does not allow it.
        """
        return self._link.call("PUT", "/v1/rules", RulesReport, RulesRequest(document=dict(document)), timeout=THOUGHT)

    def service_orders(self, news: GatewayNews) -> OrdersReport:
        """Report the state of the services of a gateway. Return what rules that have fired ask of the services of this
        tenant.
        """
        return self._link.call("POST", "/v1/rules/orders", OrdersReport, news)

    def endpoints(self, job: str, *, known: str = "", wait: float = 0.0) -> EndpointsReport:
        """Return the addresses of the running tasks of a job. `job` is its id, or the name of an unfinished job. Waits
        at most `wait` seconds for a complete answer other than `known`.
        """
        path = f"/v1/endpoints?job={quoted(job)}&known={known}&wait={wait:g}"
        return self._link.call("GET", path, EndpointsReport, timeout=PATIENCE + wait)

    def answer_rule(self, rule: str, subject: str, *, allowed: bool) -> RuleDone:
        """Allow or deny the actions of a rule that asks for approval. `subject` is the node, or empty for the fleet.
        Return the actions that were taken.

        Raises NotFound if the rule has not fired for the subject, and Conflict if it asks for no approval there.
        """
        answer = RuleAnswer(rule=rule, subject=subject, allowed=allowed)
        return self._link.call("POST", "/v1/rules/answers", RuleDone, answer)

    def roll_back_policy(self) -> PolicyReport:
        """Restore the previous scheduling policy and return it. Raises NotFound if there was none."""
        return self._link.call("POST", "/v1/policy/rollback", PolicyReport, timeout=THOUGHT)

    def shadows(self) -> list[ShadowReport]:
        """List the policies in shadow. Each report compares the plans and the simulated fleet of the policy with those
        of the current policy.
        """
        return self._link.call("GET", "/v1/shadow", list[ShadowReport], timeout=THOUGHT)

    def start_shadow(self, policy: str | Mapping[str, Any]) -> ShadowReport:
        """Start to run a policy in shadow, by its name or as the content of a policy file. Its plans have no effect.
        Return its report.

        Raises SpecError if there is no such policy or the content is invalid, and Conflict if too many policies are in
        shadow.
        """
        return self._link.call("PUT", "/v1/shadow", ShadowReport, _policy_request(policy), timeout=THOUGHT)

    def stop_shadow(self, policy: str) -> ShadowReport:
        """Stop a policy in shadow and return its last report. Raises NotFound if it is not in shadow."""
        return self._link.call("DELETE", f"/v1/shadow/{part(policy, 'poise shadow')}", ShadowReport, timeout=THOUGHT)

    def promote(self, policy: str, *, force: bool = False, nodes: str = "") -> PolicyReport:
        """Make a policy in shadow the scheduling policy, and return it. With `nodes`, let it decide only for a part of
        the nodes: a share (`25%`), names (`n1,n2`) or labels (`zone=a`). It stays in shadow then.

        Raises NotFound if it is not in shadow. Raises Conflict if its figures do not show that it is better, unless
        `force` is set. Raises SpecError for nodes that do not exist.
        """
        promotion = Promotion(force=force, nodes=nodes)
        return self._link.call(
            "POST", f"/v1/shadow/{part(policy, 'poise shadow')}/promotion", PolicyReport, promotion, timeout=THOUGHT
        )

    def whoami(self, within: float = PATIENCE) -> WhoReport:
        """Return the tenant and the role of this client's token. `within` is the time limit in seconds."""
        return self._link.call("GET", "/v1/whoami", WhoReport, timeout=within)

    def tokens(self) -> list[TokenReport]:
        """List the created tokens, including the latest revoked ones."""
        return self._link.call("GET", "/v1/tokens", list[TokenReport])

    def add_token(
        self, tenant: str, role: str, *, name: str = "", expires: str | float | None = None, account: str = ""
    ) -> tuple[TokenReport, str]:
        """Create a token for a tenant and return it with its secret. Only the caller gets the secret. `expires` is a
        duration from now (seconds, or `30d`; None: never). Commands submitted with it run as the Unix `account`.

        Raises SpecError if a name or the duration is invalid, and Conflict if there are too many tokens.
        """
        secret = new_secret()
        body: dict[str, Any] = {"tenant": tenant, "role": role, "hash": digest(secret), "name": name}
        body |= {"expires": expires, "account": account}
        return self._link.call("POST", "/v1/tokens", TokenReport, body), secret

    def revoke_token(self, token: str) -> None:
        """Revoke a token, by id. Raises NotFound if there is no such token."""
        self._link.call("DELETE", f"/v1/tokens/{part(token, 'poise token ls')}", dict[str, str])

    def budgets(self) -> list[BudgetReport]:
        """List the budgets that this token may see, with the amount spent of each."""
        return self._link.call("GET", "/v1/budgets", list[BudgetReport])

    def set_budgets(self, document: dict[str, Any]) -> list[BudgetReport]:
        """Replace all budgets by the content of a budgets file. Return them.

        Raises SpecError with every error in the file.
        """
        return self._link.call("PUT", "/v1/budgets", list[BudgetReport], BudgetsRequest(document=document))

    def start_device_sign_in(self) -> SignInCode:
        """Start a sign-in with a code that the user enters in a browser. The client needs no token (`token=""`).

        Raises NotFound if sign-in is not set up there, and Fault if the issuer does not answer.
        """
        return self._link.call("POST", "/v1/sign-in/device", SignInCode)

    def start_page_sign_in(self, *, redirect: str, state: str, nonce: str, challenge: str) -> str:
        """Return the URL of the issuer where a browser signs in. The issuer then sends the browser to `redirect`."""
        body = {"redirect": redirect, "state": state, "nonce": nonce, "challenge": challenge}
        return self._link.call("POST", "/v1/sign-in/page", PageReport, body).url

    def sign_in(self, secret: str, **proof: str) -> SignInReport:
        """Register `secret` as the token of a person, with a `proof` of identity: `device_code`, `refresh`, or `code`
        with `redirect`, `verifier` and `nonce`.

        Raises Denied if the proof is refused, and Forbidden if no rule gives the person a tenant.
        """
        return self._link.call("POST", "/v1/sign-in", SignInReport, {"hash": digest(secret), **proof})

    def sign_out(self, refresh: str = "") -> str:
        """Revoke the token of this client, and the refresh token at the issuer. Return the id of the token."""
        return self._link.call("POST", "/v1/sign-out", dict[str, str], {"refresh": refresh})["token"]

    def refusals(self) -> RefusalsReport:
        """Return the number of requests refused since the control plane started, by code, and the latest of them."""
        return self._link.call("GET", "/v1/refusals", RefusalsReport)

    def drain(self, node: str, *, on: bool = True, moves: bool = False) -> Drained:
        """Close a node, or one of its devices (`n1:0`), to new work, or open it again with `on=False`. With `moves`,
        its running work moves to other nodes. Return the number of tasks that move and of those that stay until they
        end.

        Raises NotFound if there is no such node or device.
        """
        return self._link.call(
            "POST", f"/v1/nodes/{part(node, 'poise nodes')}/drain", Drained, {"on": on, "moves": moves}
        )

    def give_up(self, *nodes: str) -> list[str]:
        """Report nodes as lost, by their full names, so that their work restarts elsewhere before the heartbeat
        timeout. Return the names of the known ones.

        Report all missing nodes together: if they are most of the fleet, they get a minute to come back. A node that is
        still alive joins again. Raises NotFound if none of the nodes is known.
        """
        return self._link.call("POST", "/v1/nodes/lost", dict[str, list[str]], {"nodes": nodes})["nodes"]

    def leave(self, node: str) -> None:
        """Remove this node from the control plane, with the token that it joined with. The node leaves the list of
        nodes as soon as its work has been placed elsewhere.

        Raises NotFound if there is no such node, and Forbidden if it joined with another token.
        """
        self._link.call("POST", "/v1/nodes/leave", dict[str, str], {"node": node})

    def lend(self, *nodes: str) -> str:
        """Request the machine of one of these nodes, given by their full names, for other users who wait for it. The
        node that loses the least work is drained, and its work is preempted. Return its name; empty if each node has
        work that may not be preempted.
        """
        return self._link.call("POST", "/v1/nodes/lend", dict[str, str], {"nodes": nodes})["node"]

    def status(self) -> StatusReport:
        """Return the status of the control plane."""
        return self._link.status()

    def overview(self) -> Overview:
        """Return the overview that `poise top` shows."""
        return self._link.call("GET", "/v1/overview", Overview)

    def demand(self) -> DemandReport:
        """Return the work that waits for resources, grouped by its request. For each busy node, return the expected
        time until the first of its work ends.
        """
        return self._link.call("GET", "/v1/demand", DemandReport)

    def share(self, substrate: str, quotes: Sequence[Quote]) -> DemandReport:
        """Send the quotes of a substrate that gets machines on request, and return its share of the waiting work."""
        return self._link.call("POST", "/v1/demand", DemandReport, Offer(substrate=substrate, quotes=tuple(quotes)))

    def backlog(
        self,
        *,
        of: str = "tasks",
        state: str = "unfinished",
        tenant: str = "",
        project: str = "",
        class_: str = "",
        service: str = "",
    ) -> int:
        """Return how many tasks wait for room or run, and match every filter; with `state="waiting"` how many wait.
        `of` may also be `cpu` (milli-CPU), `memory` (bytes) or `gpus`: what they request together.
        """
        filters = {"tenant": tenant, "project": project, "class": class_, "service": service}
        asked = [f"of={of}", f"state={state}", *(f"{name}={quoted(text)}" for name, text in filters.items() if text)]
        return self._link.call("GET", f"/v1/backlog?{'&'.join(asked)}", Backlog).value

    def changes(self, after: int, *, wait: float = 0.0) -> ChangesReport:
        """Return the nodes and jobs that have changed after the revision `after`. With `wait`, return at the first
        change, or after that many seconds.
        """
        path = f"/v1/changes?after={after}&wait={wait:g}"
        return self._link.call("GET", path, ChangesReport, timeout=wait + PATIENCE)

    def stay(self) -> None:
        """Keep the control plane running after its last job, even if it was started for only one job."""
        self._link.call("POST", "/v1/stay", dict[str, bool])

    def shutdown(self) -> None:
        """Stop the control plane. Running work continues."""
        self._link.call("POST", "/v1/shutdown", dict[str, bool])

    def logs(
        self,
        name: str,
        *,
        task: str = "",
        follow: bool = False,
        tail: int = -1,
        since: float = 0.0,
        rank: int = -1,
        begun: Callable[[], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output of a job in pieces, then its end.

        `tail` limits the existing output to this number of last lines of each stream, of the latest attempt of each
        task. `since` limits it to output from this time on, in seconds since 1970. `begun` is called after the existing
        output, before later output. `task` selects one task, `rank` one member of a gang. `follow` waits for more
        output until the job is over.

        No output is repeated when the control plane restarts. With several control planes, the leader is asked first.
        Without `follow`, the others are then asked for output that the leader lacks. Raises NotFound if there is no
        such job or task.
        """
        return streams.logs(self._link, name, task=task, follow=follow, tail=tail, since=since, rank=rank, begun=begun)

    def results(self, name: str) -> Iterator[PartReport]:
        """Yield a row for each task of a job that is over: in order, or, of an array, as they ended. Raises
        NotFound.
        """
        return streams.results(self._link, name)

    def give(
        self,
        name: str,
        data: bytes = b"",
        *,
        task: str = "",
        epoch: int = 0,
        at: int = 0,
        end: bool = False,
        size: str = "",
        hold: float = 0.0,
        hang_up: bool = False,
    ) -> InputReport:
        """Send a piece of standard input to a task, and return the number of bytes that the attempt has accepted.

        The piece starts at byte `at` of the input of the attempt `epoch`; `end` marks the end of the input. Without
        data, the call only returns the accepted amount. `size` is the size of a terminal, `ROWSxCOLUMNS`. The terminal
        hangs up at once with `hang_up`, or after `hold` seconds without input.
        """
        piece = {"task": task, "epoch": epoch, "at": at, "data": data, "end": end}
        piece |= {"size": size, "hold": hold, "hang_up": hang_up}
        return self._link.call("POST", f"/v1/jobs/{part(name)}/input", InputReport, piece, timeout=THOUGHT)

    def feed(self, name: str, source: "Source | bytes", *, task: str = "", joins: bool = False) -> None:
        """Send the whole standard input of a task, until the task is over. A restarted task gets all of it again. With
        `joins`, input from other senders is kept, and nothing is sent twice.
        """
        streams.feed(self._link, f"/v1/jobs/{part(name)}/input", source, {"task": task}, joins=joins)

    def exec(
        self,
        name: str,
        run: Sequence[str],
        *,
        task: str = "",
        rank: int | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: str = "",
    ) -> Generator[ExecLine]:
        """Run a command beside a running task and yield its output, then its result.

        The command runs in the folder of the task, with its environment, devices and memory limit. It ends with the
        task, or when the caller stops reading its output. `task` or `rank` selects one of several running tasks. `env`
        adds environment variables. With `stdin` the command waits for input from `feed_exec`; `tty` is the size of a
        terminal, `ROWSxCOLUMNS`.

        Raises NotFound if there is no such job or task, and SpecError unless exactly one task is selected and runs.
        Raises Unreachable if the control plane ends, which also ends the command.
        """
        body = {"run": [*run], "task": task, "rank": rank, "env": dict(env or {}), "stdin": stdin, "tty": tty}
        yield from streams.beside(self._link, name, "exec", body)

    def connect(
        self, name: str, *, port: int = 0, key: str = "", task: str = "", rank: int | None = None
    ) -> Generator[ExecLine]:
        """Connect to a TCP port on the node of a running task or, with a public `key`, to an SSH server there, and
        yield what it sends, then the end. `feed_exec` sends. `task` and `rank` are those of `exec`.

        Its `err` stream has lines of JSON: `{"sent": N}` once the service has ended its direction after N bytes, or
        `{"message": …, "hint": …}`. Raises what `exec` raises.
        """
        yield from streams.beside(self._link, name, "connect", {"port": port, "key": key, "task": task, "rank": rank})

    def capture(
        self,
        name: str,
        kind: CaptureKind = "stacks",
        *,
        task: str = "",
        rank: int | None = None,
        lasts: str | float | None = None,
        begun: Callable[[str], None] | None = None,
    ) -> Capture:
        """Capture the activity of a running task for `lasts` (seconds, or `30s`), and store the capture beside its
        output.

        `kind` is `stacks` (a flame graph by py-spy), `dump` (the current stacks) or `torch` (a trace by the PyTorch
        profiler). `task` or `rank` selects one of several running tasks. `begun` is called with the name of the node.

        Raises InputError if the task cannot be captured, and Unreachable if the control plane ends first.
        """
        return streams.capture(self._link, name, kind, task=task, rank=rank, lasts=lasts, begun=begun)

    def get(self, name: str, path: str, *, task: str = "", rank: int | None = None) -> Iterator[bytes]:
        """Yield a file or folder of a task, on its node, as pieces of a tar archive. `path` is relative to the folder
        of the job. `task` or `rank` selects one of several tasks.

        Raises NotFound if the node has no such path, and SpecError unless exactly one task is selected and has run.
        Raises Fault if the files cannot be read, and Unreachable if the control plane ends too early.
        """
        return streams.get(self._link, name, path, task=task, rank=rank)

    def captures(self, name: str) -> list[Capture]:
        """List the stored captures of a job, oldest first. Raises NotFound if there is no such job."""
        return self._link.call("GET", f"/v1/jobs/{part(name)}/captures", list[Capture])

    def read_capture(self, name: str, capture: str) -> bytes:
        """Return the content of a stored capture. Raises NotFound if the job has no such capture."""
        with self._link.stream(
            f"/v1/jobs/{part(name)}/captures/{part(capture, 'poise capture JOB --list')}"
        ) as response:
            return response.read()

    def feed_exec(self, name: str, source: "Source | bytes") -> None:
        """Send the whole standard input of a command that runs beside a task. `name` is the name that `exec` yields
        first.
        """
        with contextlib.suppress(NotFound):  # it has ended
            streams.feed(self._link, f"/v1/exec/{part(name)}/input", source, {}, joins=False)

    def events(self, *, after: int = -1, decisions: bool = False, follow: bool = True) -> Iterator[bytes]:
        """Yield records of the log as JSON, each once it is durable. `after` is the revision to start after. With
        `decisions`, yield decisions only. Without `follow`, stop at the end of the log.
        """
        return streams.records(self._link, f"/v1/events?decisions={str(decisions).lower()}&", after, follow)

    def audit(self, *, after: int = 0, follow: bool = False) -> Iterator[bytes]:
        """Yield the requested changes with their authors, as JSON. `after` is the revision to start after. With
        `follow`, wait for more.
        """
        return streams.records(self._link, "/v1/audit?", after, follow)

    def submit_stream(self, specs: Iterable[dict[str, Any]], keys: Iterable[str] | None = None) -> Iterator[Receipt]:
        """Submit jobs one by one over one connection, and yield their receipts in order, each as soon as its job is
        durable. Each job has one of the idempotency `keys` (default: random ones).

        If the connection is lost, submissions without a receipt are sent again to the current leader. No job is
        accepted twice. Raises Unreachable if no control plane answers within the client's `patience`.
        """
        return submit_stream(self._link, specs, keys)

    def _pages(self, path: str, kind: type[list[T]], name_of: Callable[[T], str], size: int) -> Iterator[list[T]]:
        last = ""
        while True:
            page = self._link.call("GET", f"{path}limit={size}&after={quoted(last)}", kind)
            yield page
            if len(page) < size:
                return
            last = name_of(page[-1])


def _policy_request(policy: str | Mapping[str, Any]) -> PolicyRequest:
    return PolicyRequest(name=policy) if isinstance(policy, str) else PolicyRequest(document=dict(policy))


def _filters(statuses: Collection[JobStatus], name: str, user: str) -> Iterator[str]:
    yield from (f"status={one}" for one in statuses)
    if name:
        yield f"name={quoted(name)}"
    if user:
        yield f"user={quoted(user)}"
