"""Names of container images."""

from typing import NamedTuple

HERE = "localhost"
"""The registry in the name of an image that was built on a node."""


class Reference(NamedTuple):
    """The name of an image in a registry. `host` is empty if each node decides which registry it means."""

    host: str
    path: str
    tag: str
    digest: str

    @property
    def is_remote(self) -> bool:
        """Whether the name contains the registry of the image."""
        return self.host not in ("", HERE)


def parsed(image: str) -> Reference:
    """Split the name of an image.

    >>> parsed("registry.example.org:5000/team/train:1")
    Reference(host='registry.example.org:5000', path='team/train', tag='1', digest='')
    >>> parsed("python:3.12").host, parsed("localhost/mine").host
    ('', 'localhost')
    """
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    host, path = (first, rest) if slash and ("." in first or ":" in first or first == HERE) else ("", name)
    path, _, tag = path.partition(":")
    return Reference(host, path, tag, digest)
