"""`--on kubernetes[:CONTEXT][,NAME=VALUE,…]`: agents in Pods on the nodes of a Kubernetes cluster."""

from collections.abc import Iterator

from poise.model.reports import Check
from poise.ports import Substrate
from poise_kubernetes.settings import parse_settings


def check(argument: str) -> None:
    """Raise `InputError` if the argument is wrong, or there are no credentials for a cluster here."""
    from poise_kubernetes.credentials import find_access

    find_access(parse_settings(argument).context)


def is_local(argument: str) -> bool:
    """Whether all machines are this one: never."""
    return False


def examine(argument: str, folder: str) -> Iterator[Check]:
    """Check the API server, the rights of these credentials, the nodes, and the quotas of the namespace."""
    from poise_kubernetes.checkup import checks

    return checks(parse_settings(argument))


def connect(argument: str, home: str, folder: str) -> Substrate:
    """Connect to a Kubernetes cluster with the local credentials. Raises `Fault` if its API server does not answer, or
    does not grant the required rights.
    """
    from poise_kubernetes.cluster import open_cluster  # slow to import

    return open_cluster(parse_settings(argument), home)
