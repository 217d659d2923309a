"""The Pods of tasks where a namespace enforces the profile `restricted` of Pod Security.

The images of tasks are those of users, and many need root or capabilities. So a task runs as its image says, unless
the API server refuses its Pod by that profile: then the Pod is created again with all that the profile requires.
"""

from collections.abc import Callable, Mapping
from typing import Any

from poise.drivers.kubernetes.api import Api, Refused

RESTRICTED = 'violates PodSecurity "restricted'
"""Part of the message with which the API server refuses a Pod by the profile."""

PROFILE: Mapping[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
CONTAINER: Mapping[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The security contexts of a Pod and of its container that the profile requires."""


def create_task(
    api: Api, path: str, made: Callable[[bool], Mapping[str, Any]], restricted: bool, **query: str
) -> tuple[Any, bool]:
    """Create the Pod that `made` returns, `restricted` or not. If the profile refuses it, create it restricted. Return
    the answer, and whether the Pod is restricted. Raises `Away` and `Refused`.
    """
    try:
        return api.create(path, made(restricted), **query), restricted
    except Refused as refused:
        if restricted or RESTRICTED not in refused.message:
            raise
    return api.create(path, made(True), **query), True
