"""The Secret of a home, which owns its Pods: the cluster collects Pods whose owner is gone."""

from urllib.parse import quote

from poise.drivers.kubernetes.api import Api, Refused
from poise_kubernetes import manifests


def ensure_owner(api: Api, namespace: str, home: str) -> dict[str, str]:
    """Return the name and the uid of the Secret of a home; create it if it does not exist. Raises `Away` and
    `Refused`.
    """
    path, name = f"/api/v1/namespaces/{quote(namespace)}/secrets", manifests.home_name(home)
    try:
        there = api.get(f"{path}/{name}")
    except Refused as refused:
        if refused.status != 404:
            raise
        there = api.create(path, manifests.secret(home))
    return {"name": name, "uid": str(there["metadata"]["uid"])}
