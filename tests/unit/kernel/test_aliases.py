"""Other names of models, and their shares."""

from collections import Counter

from poise_serve.kernel.aliases import Aliases


def test_a_name_that_is_no_alias_is_a_model() -> None:
    aliases = Aliases({"chat": (("llama", 1.0),)})
    assert [aliases.resolve(name) for name in ("chat", "llama", "other")] == ["llama", "llama", "other"]
    assert "chat" in aliases and "llama" not in aliases and list(aliases) == ["chat"]


def test_shares_are_exact_at_any_time() -> None:
    aliases = Aliases({"chat": (("v1", 0.9), ("v2", 0.1))})
    chosen = [aliases.resolve("chat") for _ in range(100)]
    assert Counter(chosen) == {"v1": 90, "v2": 10}
    assert all(abs(chosen[:count].count("v2") - 0.1 * count) <= 1 for count in range(1, 101))


def test_a_share_of_nothing_gets_nothing() -> None:
    aliases = Aliases({"chat": (("v1", 1.0), ("v2", 0.0))})
    assert {aliases.resolve("chat", key) for key in ("", "a", "b", "c")} == {"v1"}
    assert {aliases.resolve("chat") for _ in range(50)} == {"v1"}


def test_a_session_stays_and_moves_only_to_the_share_that_grows() -> None:
    keys = [f"session-{number}" for number in range(2000)]
    few, many = (Aliases({"chat": (("v2", share), ("v1", 1 - share))}) for share in (0.1, 0.5))
    before = {key: few.resolve("chat", key) for key in keys}
    assert before == {key: few.resolve("chat", key) for key in keys}
    after = {key: many.resolve("chat", key) for key in keys}
    assert {(before[key], after[key]) for key in keys} == {("v1", "v1"), ("v1", "v2"), ("v2", "v2")}
    assert 150 < Counter(before.values())["v2"] < 250 and 900 < Counter(after.values())["v2"] < 1100
