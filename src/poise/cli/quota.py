"""`poise quota`."""

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import say
from poise.client import current_home
from poise.control.start import connected
from poise.model.reports.tenants import QuotaReport
from poise.units import format_bytes, format_cpu


@click.command()
@click.option("--cpu", metavar="N", help="Maximum number of CPUs that its work holds at once.")
@click.option("--memory", metavar="SIZE", help="Maximum memory that its work requests at once.")
@click.option(
    "-g",
    "--gpu",
    metavar="N",
    help="Maximum number of devices that its work holds at once; a share counts as its share.",
)
@click.option(
    "--hours", multiple=True, metavar="HOURS", help="Other amounts in these hours: '20:00-06:00 mon-fri gpu=8'."
)
@click.option("--time-zone", metavar="ZONE", help="Time zone of --hours; UTC by default.")
@click.option("--none", "lifted", is_flag=True, help="Remove the quota.")
@output.rows
@click.argument("tenant", required=False)
def quota(
    cpu: str | None,
    memory: str | None,
    gpu: str | None,
    hours: tuple[str, ...],
    time_zone: str | None,
    lifted: bool,
    form: str,
    watch: bool,
    tenant: str | None,
) -> int:
    """Set the quota of TENANT, for all its work on all nodes; without TENANT, list the quotas.

    Resources that you do not name have no quota. Running work continues, even beyond the quota. The first of several
    --hours that contain the time applies.
    """
    given = (("cpu", cpu), ("memory", memory), ("gpu", gpu), ("hours", hours or None), ("time_zone", time_zone))
    bounds = {name: value for name, value in given if value is not None}
    if tenant is None and (bounds or lifted):
        raise click.UsageError("whose quota? `poise quota TENANT --cpu 4`")
    if tenant is not None and bool(bounds) == lifted:
        raise click.UsageError(f"`poise quota {tenant} --cpu 4`, or `--none`")
    client = connected(current_home())
    if tenant is not None:
        note = client.set_quota(tenant, None if lifted else bounds)
        if note:
            say(f"poise: {note}")
        if form == "table" and not watch:
            if not lifted:
                say(f"the work of {tenant} has a quota from now on")
            elif not note:
                say(f"the work of {tenant} has no quota any more")
            return 0
    return output.show(lambda: _shown(client.quotas()), form, watch)


def _shown(quotas: list[QuotaReport]) -> Shown:
    return Shown(
        quotas,
        [of.tenant for of in quotas],
        [
            Column("TENANT", [of.tenant for of in quotas]),
            Column("CPU", [_cpu(of) for of in quotas]),
            Column("MEMORY", [_memory(of) for of in quotas]),
            Column("GPU", [_gpu(of) for of in quotas]),
            Column("HOURS", [_hours(of) for of in quotas], bare=True),
        ],
        nothing="poise: no quotas; `poise quota TENANT --cpu 4` sets one",
    )


def _hours(of: QuotaReport) -> str:
    told = "; ".join(f"{hours} (now)" if hours == of.now_in else hours for hours in of.hours)
    return f"{told} ({of.time_zone})" if told else ""


def _cpu(of: QuotaReport) -> str:
    return f"{format_cpu(of.cpu_held)}/{format_cpu(of.cpu) if of.cpu is not None else '-'}"


def _memory(of: QuotaReport) -> str:
    return f"{format_bytes(of.memory_held)}/{format_bytes(of.memory) if of.memory is not None else '-'}"


def _gpu(of: QuotaReport) -> str:
    return f"{of.gpu_held:g}/{f'{of.gpu:g}' if of.gpu is not None else '-'}"
