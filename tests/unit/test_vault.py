"""Secrets are sealed with the keys of a home, and open for the tenant and the name that they were sealed for."""

import base64
import stat
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from poise.config import Home
from poise.drivers.vault import Vault
from poise.errors import Fault, PoiseError
from poise.model.secrets import Sealed

KEY_A, KEY_B = "a" * 64, "b" * 64


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "secrets.key")


def written(vault: Vault, *keys: str) -> Vault:
    vault.path.touch(mode=0o600)
    vault.path.write_text("".join(f"{key}\n" for key in keys))
    return vault


def refused(vault: Vault, sealed: Sealed, tenant: str = "ann", name: str = "HF_TOKEN") -> str:
    with pytest.raises(PoiseError) as raised:
        vault.open(tenant, name, sealed.text)
    assert raised.value.record.code == "E215" and raised.value.record.hint
    return str(raised.value)


def test_a_sealed_value_opens_and_shows_nothing(vault: Vault) -> None:
    value = "hf_" + "s3cret" * 8
    one, other = vault.seal("ann", "HF_TOKEN", value), vault.seal("ann", "HF_TOKEN", value)
    assert vault.open("ann", "HF_TOKEN", one.text) == value
    assert one != other, "two seals of one value do not tell that it is one"
    for form in (value, base64.b64encode(value.encode()).decode().rstrip("="), value.encode().hex()):
        assert form not in one.text
    assert stat.S_IMODE(vault.path.stat().st_mode) == 0o600


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(), st.text())
def test_any_text_comes_back_for_its_tenant_and_name_only(vault: Vault, value: str, tenant: str, name: str) -> None:
    tenant, name = (of.replace("\0", "") for of in (tenant, name))
    sealed = vault.seal(tenant, name, value)
    assert vault.open(tenant, name, sealed.text) == value
    refused(vault, sealed, f"{tenant}x", name)
    refused(vault, sealed, tenant, f"{name}x")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_text_that_was_changed_anywhere_does_not_open(vault: Vault, data: st.DataObject) -> None:
    sealed = vault.seal("ann", "HF_TOKEN", "value")
    at = data.draw(st.integers(0, len(sealed.text) - 1))
    letter = data.draw(st.sampled_from("ABCDabcd0123+/=. \n\0é"))  # without a filter by the text, which is random
    changed = Sealed(sealed.text[:at] + letter + sealed.text[at + 1 :])
    try:
        opened = vault.open("ann", "HF_TOKEN", changed.text)
    except PoiseError:
        return
    assert opened == "value" and base64.b64decode(changed.text[9:]) == base64.b64decode(sealed.text[9:])


def test_the_first_key_seals_and_all_of_them_open(vault: Vault) -> None:
    before = written(vault, KEY_A).seal("ann", "HF_TOKEN", "old")
    after = written(vault, KEY_B, KEY_A).seal("ann", "HF_TOKEN", "new")
    assert [vault.open("ann", "HF_TOKEN", one.text) for one in (before, after)] == ["old", "new"]
    written(vault, KEY_B)
    assert vault.open("ann", "HF_TOKEN", after.text) == "new"
    assert before.text[:8] in refused(vault, before)


def test_without_its_key_a_value_does_not_open_and_the_error_names_the_key_and_the_file(vault: Vault) -> None:
    sealed = vault.seal("ann", "HF_TOKEN", "hf_abc")
    vault.path.unlink()
    with pytest.raises(Fault) as raised:
        vault.open("ann", "HF_TOKEN", sealed.text)
    assert sealed.text[:8] in str(raised.value) and vault.path.name in raised.value.record.hint
    assert str(vault.path) not in raised.value.record.hint, "users of other tenants read it"
    assert not vault.path.exists(), "opening makes no key"


def test_a_name_without_a_value_does_not_open(vault: Vault) -> None:
    vault.seal("ann", "HF_TOKEN", "value")
    refused(vault, Sealed(""))


@pytest.mark.parametrize("text", ["", "x\n", f"{KEY_A[:-1]}\n", f"{KEY_A}\n{KEY_B}0\n"])
def test_a_file_that_holds_no_keys_is_refused_and_left_as_it_is(vault: Vault, text: str) -> None:
    vault.path.touch(mode=0o600)
    vault.path.write_text(text)
    with pytest.raises(PoiseError) as raised:
        vault.seal("ann", "HF_TOKEN", "value")
    assert raised.value.record.code == "E215" and raised.value.record.hint
    assert vault.path.read_text() == text


def test_keys_that_others_may_read_are_refused(vault: Vault) -> None:
    written(vault, KEY_A).path.chmod(0o644)
    with pytest.raises(PoiseError, match="others may read") as raised:
        vault.seal("ann", "HF_TOKEN", "value")
    assert raised.value.record.hint == "in the state directory: `chmod 600 secrets.key`"


def test_no_new_key_is_made_while_jobs_need_the_old_one(vault: Vault) -> None:
    sealed = vault.seal("ann", "HF_TOKEN", "value")
    again = Vault(vault.path, in_use=lambda: [sealed.text])
    vault.path.unlink()
    with pytest.raises(Fault, match="the keys of secrets are gone, and unfinished jobs need them"):
        again.seal("ann", "HF_TOKEN", "value")
    assert not vault.path.exists()
    assert Vault(vault.path, in_use=list).seal("ann", "HF_TOKEN", "value").text


def test_without_its_library_sealing_and_opening_name_the_extra(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = vault.seal("ann", "HF_TOKEN", "value")
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for use in (lambda: vault.seal("ann", "A", "value"), lambda: vault.open("ann", "HF_TOKEN", sealed.text)):
        with pytest.raises(PoiseError) as raised:
            use()
        assert raised.value.record.hint == "pip install 'poise-scheduler[secrets]'"


def test_a_home_that_shares_its_log_makes_no_key_of_its_own(tmp_path: Path) -> None:
    """The other control planes could not open what it seals."""
    home = Home(tmp_path)
    home.store.write_text("postgresql://db/poise")
    with pytest.raises(PoiseError, match="need the same") as raised:
        Vault.of(home).seal("ann", "A", "value")
    assert str(home.secrets_key) in raised.value.record.hint and not home.secrets_key.exists()
    sealed = written(Vault.of(home), KEY_A).seal("ann", "A", "value")
    assert Vault.of(home).open("ann", "A", sealed.text) == "value"


def test_keys_that_are_missing_are_named_once(vault: Vault) -> None:
    one, other = (written(vault, key).seal("ann", "A", "value") for key in (KEY_A, KEY_B))
    assert vault.missing([other.text]) == [] == vault.missing([])
    assert vault.missing([one.text, one.text, other.text]) == [one.text[:8]]
    assert vault.missing([one.text]) == [], "it is known"
