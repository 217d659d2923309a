"""The digest of a tag, as a real registry on loopback says it."""

from pathlib import Path

import pytest

from drivers.registry import Registry
from poise.drivers.registries import Unpinned, pinned
from poise.errors import SpecError


@pytest.mark.parametrize(("login", "by_token"), [("", False), ("ann:secret", False), ("ann:secret", True)])
def test_a_tag_becomes_a_digest_with_the_credentials_that_the_registry_wants(
    login: str, by_token: bool, tmp_path: Path
) -> None:
    with Registry(login, by_token=by_token).serving() as registry:
        digest = registry.add("team/train:1", b"{}")
        logins = registry.logins(tmp_path / "ann.json")
        image = f"{registry.host}/team/train:1"
        assert pinned(image, logins) == f"{image}@{digest}"
        asked = len(registry.asked)
        assert pinned(f"{image}@{digest}", logins) == f"{image}@{digest}"
        assert len(registry.asked) == asked, "a digest is not asked for"


def test_an_image_that_is_not_there_is_an_error_and_an_unknown_one_is_not(tmp_path: Path) -> None:
    with Registry("ann:secret").serving() as registry:
        logins = registry.logins(tmp_path / "ann.json")
        with pytest.raises(SpecError, match="does not have this image"):
            pinned(f"{registry.host}/team/train:2", logins)
        with pytest.raises(Unpinned, match="asks for credentials"):
            pinned(f"{registry.host}/team/train:2", tmp_path / "bob.json")
        registry.login = "other"
        with pytest.raises(SpecError, match="refuses the tenant's credentials"):
            pinned(f"{registry.host}/team/train:2", logins)
        host = registry.host
    with pytest.raises(Unpinned, match="does not answer"):
        pinned(f"{host}/team/train:1", logins)
    with pytest.raises(Unpinned, match="no registry"):
        pinned("python:3.12", logins)
    assert pinned("localhost/mine:1", logins) == "localhost/mine:1"


def test_credentials_go_only_where_the_registry_may_send_them(tmp_path: Path) -> None:
    """A registry that asks for a token from a place without TLS gets no credentials there."""
    with Registry("ann:secret", by_token=True).serving() as registry:
        logins = registry.logins(tmp_path / "ann.json")
        host, registry.host = registry.host, "registry.example.org"
        with pytest.raises(Unpinned, match="than by TLS"):
            pinned(f"{host}/team/train:1", logins)
        assert registry.asked == ["HEAD /v2/team/train/manifests/1"]
