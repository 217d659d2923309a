"""`--on kubernetes[:CONTEXT][,NAME=VALUE,…]`: agents in Pods on the nodes of a Kubernetes cluster; or, with
`scheduler=NAME`, the scheduler of the Pods that name it.
"""

from collections.abc import Iterator
from pathlib import Path

from poise.model.reports.nodes import Check
from poise.ports import PlacingSubstrate, Substrate
from poise_kubernetes.settings import parse_settings


def check(argument: str) -> None:
    """Raise `InputError` if the argument is wrong, or there are no credentials for a cluster here."""
    from poise.drivers.kubernetes.credentials import find_access

    find_access(parse_settings(argument).context)


def is_local(argument: str) -> bool:
    """Whether only this machine connects to the control plane: a scheduler has no agents."""
    return bool(parse_settings(argument).scheduler)


def grows(argument: str) -> bool:
    """Whether machines come on request: a scheduler has all nodes of the cluster."""
    return not parse_settings(argument).scheduler


def is_alone(argument: str) -> bool:
    """Whether its nodes run only Pods, as those of a scheduler do."""
    return bool(parse_settings(argument).scheduler)


def examine(argument: str, folder: str) -> Iterator[Check]:
    """Check the API server, the rights of these credentials, the nodes, and the quotas of the namespace."""
    from poise_kubernetes.checkup import checks

    return checks(parse_settings(argument))


def job_of(argument: str, name: str) -> str:
    """Return the name of the job for `NAMESPACE.POD`: that of its gang, if it is in one. Empty if this is no scheduler,
    or the cluster has no such Pod.
    """
    settings = parse_settings(argument)
    if not settings.scheduler:
        return ""
    from poise_kubernetes.scheduling import job_of_pod

    return job_of_pod(settings, name)


def connect(argument: str, home: str, folder: str) -> Substrate | PlacingSubstrate:
    """Connect to a Kubernetes cluster with the local credentials. Raises `Fault` if its API server does not answer, or
    does not grant the required rights.
    """
    settings = parse_settings(argument)
    if settings.scheduler:
        from poise_kubernetes.scheduling import PodScheduler  # slow to import, as below

        return PodScheduler(settings, home)
    from poise.drivers.delays import Delays
    from poise_kubernetes.cluster import open_cluster

    return open_cluster(settings, home, Delays(Path(folder) / "delays.json"))
