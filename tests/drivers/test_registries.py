"""The digest of a tag, as a real registry on loopback says it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivers.registry import Registry
from poise.control.images import AT_ONCE, OF_TENANT, Images
from poise.drivers.registries import Unpinned, _token_of, pinned
from poise.errors import SpecError
from poise.model.spec import compile_spec


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
        with pytest.raises(Unpinned, match="requires credentials"):
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
        with pytest.raises(Unpinned, match="unsafe address"):
            pinned(f"{host}/team/train:1", logins)
        assert registry.asked == ["HEAD /v2/team/train/manifests/1"]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_registry_elsewhere_leads_the_control_plane_to_no_server_of_its_own_machine(scheme: str) -> None:
    with Registry("ann:secret", by_token=True).serving() as registry:
        with pytest.raises(ValueError, match="it requires a token from"):
            _token_of("registry.example.org", f'Bearer realm="{scheme}://{registry.host}/token"', "")
        assert not registry.asked


def test_a_slow_registry_keeps_no_other_work_and_no_other_tenant_waiting(tmp_path: Path) -> None:
    with Registry().serving() as registry:
        digest = registry.add("team/train:1", b"{}")
        images, image = Images(tmp_path), f"{registry.host}/team/train:1"

        async def pinned_for(tenant: str) -> str:
            job = compile_spec({"run": "x", "image": image}, wall=0.0, tenant=tenant)
            return (await images.pinned(job)).units[0].image

        async def test() -> None:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            registry.open.clear()
            waiting = [asyncio.create_task(pinned_for("ann")) for _ in range(AT_ONCE)]
            while not registry.asked:  # noqa: ASYNC110 — another thread appends
                await asyncio.sleep(0.01)
            other = asyncio.create_task(pinned_for("bob"))
            while len(registry.asked) < OF_TENANT + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.to_thread(registry.open.set)
            assert {one.rpartition("@")[2] for one in await asyncio.gather(other, *waiting)} == {digest}

        asyncio.run(asyncio.wait_for(test(), 30))
