"""Sign-in with accounts of an issuer: who gets which token, and every forgery that gets none."""

import asyncio
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from provider import CLIENT, SECRET, Claims, Provider, SigningKey, packed, providing, settings
from provider import signed as token_signed

from poise.cli.login import login, logout
from poise.cli.tokens import whoami
from poise.config import Home
from poise.drivers import signed
from poise.drivers.oidc import AGAIN_SECONDS, Client, Issuer
from poise.drivers.security import digest, token_for
from poise.errors import Denied
from poise.kernel import signing
from poise.testing import World
from poise.units import HOUR
from unit.control.desk import Answer, Desk
from unit.control.open_door import entered, open_door

MINE = "the-secret-of-ann-0123456789-0123456789-0123"
HASH = digest(MINE)


@pytest.fixture(scope="module")
def one_provider() -> Iterator[Provider]:
    with providing() as made:
        yield made


@pytest.fixture
def provider(one_provider: Provider) -> Iterator[Provider]:
    before = dict(vars(one_provider))
    yield one_provider
    for name in ("key", "person", "forge", "fails"):
        setattr(one_provider, name, before[name])
    del one_provider.keys[2:]


def set_up(home: Path, provider: Provider, **more: str) -> None:
    (home / "sign-in.yaml").write_text(settings(provider, **more))
    secret = home / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)


@pytest.fixture
def desk(tmp_path: Path, provider: Provider) -> Desk:
    set_up(tmp_path, provider)
    return Desk(World(), tmp_path)


def sign_in(desk: Desk, **proof: str) -> Answer:
    return desk.call("POST", "/v1/sign-in", {"hash": HASH, **proof}, who=None)


def by_device(desk: Desk, provider: Provider) -> Answer:
    begun = desk.call("POST", "/v1/sign-in/device", who=None).value
    provider.approve()
    return sign_in(desk, device_code=begun["device_code"])


def audited(desk: Desk) -> str:
    return desk.call("GET", "/v1/audit?after=0&follow=false").body.decode()


def test_a_person_signs_in_renews_and_signs_out(desk: Desk, provider: Provider) -> None:
    begun = desk.call("POST", "/v1/sign-in/device", who=None)
    assert (begun.status, begun.value["user_code"]) == (201, "WDJB-MJHT")
    assert sign_in(desk, device_code=begun.value["device_code"]).value["pending"]
    provider.approve()
    told = sign_in(desk, device_code=begun.value["device_code"]).value
    assert (told["tenant"], told["role"], told["name"]) == ("vision", "submitter", "ann-example.com")
    assert told["lasts"] == 8 * 3600
    assert sign_in(desk, device_code=begun.value["device_code"]).code == "E135", "a code is good once"
    assert desk.call("GET", "/v1/whoami", who=MINE).value["tenant"] == "vision"
    assert "signed in, token t1 (ann-example.com): submitter of vision" in audited(desk)

    job = desk.call("POST", "/v1/jobs", {"spec": {"run": ["true"], "folder": "/"}, "user": "bob"}, who=MINE).value[
        "job"
    ]
    assert desk.call("GET", f"/v1/jobs/{job}", who=MINE).value["user"] == "ann-example.com", "nobody else's"
    desk.call("POST", f"/v1/jobs/{job}/cancel", who=MINE)

    desk.world.after("7h")
    again = sign_in(desk, refresh=told["refresh"]).value
    assert again["token"] == told["token"], "streams of the token go on"
    assert sign_in(desk, refresh=told["refresh"]).status == 401, "a refresh token is good once"
    desk.world.after("7h")
    assert desk.call("GET", "/v1/whoami", who=MINE).status == 200
    assert "renewed token t1" in audited(desk)

    provider.person = provider.person | {"groups": ["team-audio"]}
    moved = sign_in(desk, refresh=again["refresh"]).value
    assert (moved["token"], moved["tenant"]) == ("t2", "audio"), "other rights are another token"
    assert desk.call("GET", "/v1/whoami", who=MINE).value["tenant"] == "audio"
    assert desk.world.ledger.tokens["t1"].revoked

    assert desk.call("POST", "/v1/sign-out", {"refresh": moved["refresh"]}, who=MINE).value == {"token": "t2"}
    assert desk.call("GET", "/v1/whoami", who=MINE).code == "E130"
    assert sign_in(desk, refresh=moved["refresh"]).status == 401, "it is revoked at the issuer"


def test_a_revoked_or_forgotten_token_is_not_renewed(
    desk: Desk, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = by_device(desk, provider).value
    desk.world.after("8h")
    assert desk.call("GET", "/v1/whoami", who=MINE).code == "E132"
    told = sign_in(desk, refresh=told["refresh"]).value
    assert desk.call("GET", "/v1/whoami", who=MINE).status == 200, "a laptop that slept renews"
    assert desk.call("DELETE", f"/v1/tokens/{told['token']}").status == 202
    assert sign_in(desk, refresh=told["refresh"]).code == "E130", "`poise token rm` is final"
    told = by_device(desk, provider).value
    monkeypatch.setattr(signing, "RENEWABLE", HOUR)
    desk.world.after("10h")
    assert sign_in(desk, refresh=told["refresh"]).code == "E130", "after a while the person signs in again"
    provider.person = provider.person | {"sub": "2"}
    begun = desk.call("POST", "/v1/sign-in/device", who=None).value
    provider.approve()
    body = {"hash": digest("of another"), "device_code": begun["device_code"]}
    assert desk.call("POST", "/v1/sign-in", body, who=None).status == 201
    standing = [token.subject for token in desk.world.ledger.tokens.values() if not token.revoked]
    assert standing == [f"{provider.url} 2"], "forgotten tokens do not pile up"


def test_another_person_does_not_get_the_token(desk: Desk, provider: Provider) -> None:
    by_device(desk, provider)
    provider.person = provider.person | {"sub": "2"}
    assert by_device(desk, provider).code == "E130"
    assert [token.subject for token in desk.world.ledger.tokens.values()] == [f"{provider.url} 1"]


def test_a_person_has_few_tokens(desk: Desk, provider: Provider) -> None:
    for number in range(20):
        begun = desk.call("POST", "/v1/sign-in/device", who=None).value
        provider.approve()
        body = {"hash": digest(f"secret {number}"), "device_code": begun["device_code"]}
        assert desk.call("POST", "/v1/sign-in", body, who=None).status == 201
        desk.world.after("1s")
    standing = [token.id for token in desk.world.ledger.tokens.values() if not token.revoked]
    assert standing == [f"t{number}" for number in range(5, 21)]


Forgery = Callable[[Provider, Claims], str]


def _hmac_with_the_public_key(provider: Provider, claims: Claims) -> str:
    public = json.dumps(provider.key.jwk).encode()
    header = {"alg": "HS256", "kid": provider.key.kid}
    return token_signed(header, claims, lambda message: hmac.digest(public, message, "sha256"))


def _other_groups(provider: Provider, claims: Claims) -> str:
    head, _, signature = provider.key.token(claims).split(".")
    return f"{head}.{packed(json.dumps(claims | {'groups': ['team-secret']}).encode())}.{signature}"


STRANGER, WEAK = SigningKey("k1"), SigningKey("weak", bits=1024)
FORGERIES: dict[str, Forgery] = {
    "unsigned": lambda provider, claims: token_signed({"alg": "none"}, claims, lambda message: b""),
    "unsigned, with a key": lambda provider, claims: provider.key.token(claims, alg="none"),
    "signed by the public key": _hmac_with_the_public_key,
    "signed by a stranger": lambda provider, claims: STRANGER.token(claims),
    "signed by a stranger's own key": lambda provider, claims: STRANGER.token(claims, kid="x", jwk=STRANGER.jwk),
    "a key that is too short": lambda provider, claims: WEAK.token(claims),
    "another algorithm for the key": lambda provider, claims: provider.key.token(claims, alg="ES256"),
    "a critical extension": lambda provider, claims: provider.key.token(claims, crit=["b64"]),
    "forged groups": _other_groups,
    "another issuer": lambda provider, claims: provider.key.token(claims | {"iss": "https://evil.example"}),
    "another audience": lambda provider, claims: provider.key.token(claims | {"aud": "mail"}),
    "no audience": lambda provider, claims: provider.key.token(claims | {"aud": []}),
    "another party": lambda provider, claims: provider.key.token(claims | {"aud": [CLIENT, "mail"], "azp": "mail"}),
    "no party": lambda provider, claims: provider.key.token(claims | {"aud": [CLIENT, "mail"]}),
    "expired": lambda provider, claims: provider.key.token(claims | {"exp": claims["iat"] - 61}),
    "no expiry": lambda provider, claims: provider.key.token({**claims, "exp": "never"}),
    "from the future": lambda provider, claims: provider.key.token(claims | {"iat": claims["iat"] + 200}),
    "not yet valid": lambda provider, claims: provider.key.token(claims | {"nbf": claims["iat"] + 200}),
    "no account": lambda provider, claims: provider.key.token(claims | {"sub": ""}),
    "no token": lambda provider, claims: "",
    "garbage": lambda provider, claims: "a.b.c",
    "a huge token": lambda provider, claims: provider.key.token(claims | {"x": "x" * 70_000}),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_token_is_refused_counted_and_not_told(desk: Desk, provider: Provider, kind: str) -> None:
    provider.keys.append(WEAK)
    del provider.answers[:]
    provider.forge = lambda claims: FORGERIES[kind](provider, claims)
    before = desk.world.ledger.revision
    answer = by_device(desk, provider)
    assert (answer.status, answer.code) == (401, "E135"), kind
    assert desk.world.ledger.revision == before
    assert desk.call("GET", "/v1/refusals").value["counts"] == {"E135": 1}
    assert all(sent not in answer.body.decode() for sent in provider.answers if sent)


def test_a_token_that_is_nested_too_deeply_is_refused(provider: Provider) -> None:
    for part in (b'{"alg":"RS256","crit":' + b"[" * 30_000, b"[" * 30_000):
        with pytest.raises(Denied, match="not a signed token"):
            Issuer(provider.url).claims(f"{packed(part)}.{packed(part)}.AA", Client(CLIENT, SECRET))


def test_an_ecdsa_key_and_a_clock_that_is_slightly_off_are_accepted(desk: Desk, provider: Provider) -> None:
    provider.key = provider.keys[1]
    provider.forge = lambda claims: provider.key.token(claims | {"iat": claims["iat"] + 50, "aud": [CLIENT]})
    assert by_device(desk, provider).value["tenant"] == "vision"


@pytest.mark.parametrize("groups", [["guests"], [], None, "team-", ["team-"], [7], ["team-a b"], ["team-../x"]])
def test_an_account_without_a_rule_gets_no_token(desk: Desk, provider: Provider, groups: Any) -> None:
    provider.person = provider.person | {"groups": groups}
    answer = by_device(desk, provider)
    assert (answer.status, answer.code) == (403, "E136")
    assert not desk.world.ledger.tokens


def test_rules_apply_in_order_and_are_read_again(desk: Desk, provider: Provider) -> None:
    provider.person = provider.person | {"groups": ["team-vision", "ops"], "unix": "ann"}
    rules = "  - {group: ops, tenant: default, role: operator}\n  - {group: team-*, tenant: '*'}\naccount: unix"
    set_up(desk.home.root, provider, rules=rules)
    told = by_device(desk, provider).value
    assert (told["tenant"], told["role"], told["account"]) == ("default", "operator", "ann")
    provider.person = provider.person | {"groups": ["team-a b", "team-vision"]}
    assert by_device(desk, provider).value["tenant"] == "vision", "a group without a valid tenant is passed over"
    for account in ("root", "", None, 7, "../x"):
        provider.person = provider.person | {"unix": account}
        assert by_device(desk, provider).code == "E136", account


@pytest.mark.parametrize(
    "wrong", ["issuer: http://login.example.com", "issuer: https://u:p@x.example", "rules: []", "rule: 1", "lasts: 1s"]
)
def test_wrong_settings_are_refused_and_strangers_do_not_read_them(
    desk: Desk, provider: Provider, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    field = wrong.partition(":")[0]
    lines = [line for line in settings(provider).splitlines() if not line.startswith(f"{field}:")]
    lines = [line for line in lines if field != "rules" or "team-*" not in line]
    (desk.home.root / "sign-in.yaml").write_text("\n".join([*lines, wrong]))
    answer = desk.call("POST", "/v1/sign-in/device", who=None)
    assert (answer.status, "client" in answer.body.decode()) == (500, False)
    assert field in caplog.text
    caplog.clear()
    assert desk.call("POST", "/v1/sign-in/device", who=None).body == answer.body
    assert field not in caplog.text, "strangers do not make it read again"


def test_nobody_signs_in_where_no_issuer_is_set(desk: Desk) -> None:
    (desk.home.root / "sign-in.yaml").unlink()
    assert desk.call("POST", "/v1/sign-in/device", who=None).code == "E120"


def test_a_readable_client_secret_is_refused_without_being_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    secret = desk.home.root / "secret"
    secret.chmod(0o644)
    answer = desk.call("POST", "/v1/sign-in/device", who=None)
    secret.unlink()
    missing = desk.call("POST", "/v1/sign-in/device", who=None)
    assert (answer.status, missing.status) == (500, 500)
    assert all(hidden not in f"{answer.body!r}{missing.body!r}" for hidden in (SECRET, str(secret)))
    assert caplog.text.count(f"{secret}: ") == 2, "the admin reads where it is"


def test_who_is_signed_in_stays_while_the_issuer_is_down(desk: Desk, provider: Provider) -> None:
    told = by_device(desk, provider).value
    provider.fails = 503
    assert sign_in(desk, refresh=told["refresh"]).code == "E218"
    assert desk.call("POST", "/v1/sign-in/device", who=None).code == "E218"
    assert desk.call("GET", "/v1/whoami", who=MINE).status == 200
    provider.fails = 0
    assert sign_in(desk, refresh=told["refresh"]).status == 201


def test_a_slow_issuer_keeps_no_other_work_waiting(desk: Desk, provider: Provider) -> None:
    async def test() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = asyncio.create_task(desk.ask("POST", "/v1/sign-in/device"))
        while not provider.asked:  # noqa: ASYNC110 — another thread appends
            await asyncio.sleep(0.01)
        await asyncio.to_thread(provider.open.set)
        assert (await waiting).status == 201

    provider.open.clear()
    provider.asked.clear()
    try:
        asyncio.run(asyncio.wait_for(test(), 30))
    finally:
        provider.open.set()


def test_who_waits_while_the_issuer_does_not_answer_fails_with_the_first(provider: Provider) -> None:
    waiting = threading.Semaphore(0)

    class Watched:
        """A lock that tells how many wait."""

        lock = threading.Lock()

        def __enter__(self) -> None:
            waiting.release()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    issuer = Issuer(provider.url)
    issuer._reading = Watched()  # type: ignore[assignment]
    provider.fails, before = 503, len(provider.asked)
    provider.open.clear()
    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(issuer.published) for _ in range(3)]
        for _ in asking:
            waiting.acquire()
        provider.open.set()
        assert all("status 503" in str(one.exception().record.have) for one in asking)  # type: ignore[union-attr]
    assert len(provider.asked) == before + 1
    provider.fails = 0
    assert issuer.published().issuer == provider.url


def test_the_work_of_a_person_always_has_a_name(desk: Desk, provider: Provider) -> None:
    """Otherwise the client could choose whose budget it counts for."""
    provider.person = provider.person | {"preferred_username": "\u4e2d\u6587", "sub": "u-17"}
    assert by_device(desk, provider).value["name"] == "u-17"
    assert desk.call("POST", "/v1/jobs", {"spec": {"run": "x"}, "user": "ann"}, who=MINE).status == 201
    assert desk.world.ledger.jobs["j1"].user == "u-17"
    provider.person = provider.person | {"preferred_username": "..", "sub": "\u4e2d"}
    assert by_device(desk, provider).code == "E136"


def test_keys_that_the_issuer_has_changed_are_read_again_but_not_for_every_token(provider: Provider) -> None:
    now = [provider.claims()["iat"]]
    issuer, client = Issuer(provider.url, lambda: now[0]), Client(CLIENT, SECRET)
    assert issuer.claims(provider.key.token(provider.claims()), client)["sub"] == "1"
    fresh = SigningKey("k3")
    for _ in range(3):
        with pytest.raises(Denied):
            issuer.claims(fresh.token(provider.claims()), client)
    asked = provider.asked.count("/keys")
    provider.keys.append(fresh)
    now[0] += AGAIN_SECONDS + 1
    assert issuer.claims(fresh.token(provider.claims()), client)["sub"] == "1"
    assert provider.asked.count("/keys") == asked + 1
    for key in (SigningKey(""), SigningKey("")):
        provider.keys[2:] = [key]
        now[0] += AGAIN_SECONDS + 1
        told = issuer.claims(key.token(provider.claims(exp=10**400, iat=-(10**400))), client)
        assert told["sub"] == "1", "another key without an id"
    del provider.keys[2:]
    provider.keys.append(SigningKey("k9", "ES256"))
    provider.keys[2].jwk |= {"x": 5}  # type: ignore[dict-item]
    now[0] += 3601
    with pytest.raises(Denied, match="no key"):
        issuer.claims(fresh.token(provider.claims(exp=now[0] + 300)), client)
    told = issuer.claims(provider.key.token(provider.claims(exp=now[0] + 300)), client)
    assert told["sub"] == "1", "beside a key that nobody can read"


def test_the_commands_sign_in_renew_and_sign_out(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the API at a socket, and the sign-in kept in the home of another user."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir(mode=0o700)
    set_up(theirs, provider)
    for name, value in (("POISE_HOME", mine), ("POISE_SOCKET", theirs / "poise.sock")):
        monkeypatch.setenv(name, str(value))
    for name in ("POISE_TOKEN", "POISE_TOKEN_FILE", "POISE_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    home = Home(mine, theirs / "poise.sock")

    def typed(command: Any, *words: str) -> Any:
        done = CliRunner().invoke(command, [*words, "--json"], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return json.loads(done.stdout)

    def commands() -> None:
        with pytest.raises(Denied, match="requires a token"):
            token_for(home)
        told = typed(login)
        assert (told["tenant"], told["role"]) == ("vision", "submitter")
        assert typed(whoami)["token"] == told["token"]
        (kept,) = mine.glob("signed-in/*.json")
        assert kept.stat().st_mode & 0o777 == 0o600
        found = signed.signed_in(home)
        assert found is not None
        signed.keep(home, replace(found, expires=1.0))
        assert token_for(home) == found.secret, "it is renewed, though it has expired here"
        renewed = signed.signed_in(home)
        assert renewed is not None and renewed.refresh != found.refresh and not renewed.is_due
        provider.fails = 503
        signed.keep(home, replace(renewed, lasts=1e6))
        assert token_for(home) == found.secret, "it is good until it expires"
        signed.keep(home, replace(renewed, expires=1.0))
        with pytest.raises(Denied, match="has expired") as expired:
            token_for(home)
        assert expired.value.record.hint == "`poise login`"
        provider.fails = 0
        assert typed(logout)["token"] == told["token"]
        assert not list(mine.glob("signed-in/*.json"))

    async def test() -> None:
        async with open_door(theirs) as door, entered(door.app, theirs / "poise.sock"):
            approving = asyncio.create_task(_approving(provider))
            await asyncio.to_thread(commands)
            approving.cancel()

    asyncio.run(asyncio.wait_for(test(), 60))


async def _approving(provider: Provider) -> None:
    while True:
        provider.approve()
        await asyncio.sleep(0.05)
