"""Terms and policies of installed packages: found by name, and tried before they count."""

import importlib
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.drivers.plugins import (
    Choice,
    build,
    choice_of,
    choose,
    choose_document,
    choose_split,
    code_of,
    policy_of,
    policy_settings,
    sample_view,
    tried,
)
from poise.errors import Fault, SpecError, extra
from poise.model.events import Began
from poise.model.selection import Selection
from poise.policy.suites import POLICIES
from poise.testing import World

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "terms"
MODULES = ("example_terms", "others")


def install(folder: Path, points: dict[str, dict[str, str]], *, package: str = "others", version: str = "1.0") -> None:
    """What an installer leaves of a package that has these entry points."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [line for group, of in points.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in of.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def install_example(folder: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(folder, project["entry-points"], package=project["name"], version=project["version"])
    shutil.copy(EXAMPLE / "example_terms.py", folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed for one test."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def document(**fields: Any) -> dict[str, Any]:
    return {"kind": "policy", "name": "ours", **fields}


def test_two_policies_are_chosen_and_found_again_in_the_log(folder: Path) -> None:
    """With a foreign term in one of them, both run in a process of their own."""
    install_example(folder)
    trial, nodes = choose_document(document(score={"solitude": 1})), Selection(names=("n1",))
    choice = choose_split(trial, choose("fifo"), nodes)
    assert choice.foreign and not choose_split(choose("srtf"), choose("fifo"), nodes).foreign
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(choice), type=Choice) == choice
    told = policy_settings(choice, 5.0)
    assert told["policy"].startswith("ours+fifo@") and told["asked"] == 5.0
    began = Began(at=1, term=1, version="", history=1, **told)
    assert choice_of(began).label == choice.label == told["policy"]
    assert not isinstance(policy_of(began), str)
    world = World(tried(choice_of(began))).nodes(2, cpu=1).job("a").job("b").round()
    assert sorted(world.where("a") + world.where("b")) == ["n1", "n2"]
    shutil.rmtree(next(folder.glob("*.dist-info")))
    assert "solitude" in str(policy_of(began, anyway=True)), "the package of one of them is gone"


def test_the_example_works(folder: Path) -> None:
    install_example(folder)
    choice = choose_document(document(score={"solitude": 1, "fit": 0.1}, order={"compactness": 1}))
    assert choice.foreign
    world = World(build(choice)).nodes(2, cpu=4).job("a").round().job("b").round()
    assert {*world.where("a"), *world.where("b")} == {"n1", "n2"}


def test_the_example_policy_works(folder: Path) -> None:
    install_example(folder)
    policy = build(choose("smallest-first"))
    world = World(policy).nodes(2, cpu=2).job("gang", workers=2).job("large", cpu=2).job("small").round()
    assert world.where("small") and len(world.where("gang")) == 2 and not world.where("large")
    assert world.codes("large") == ["CPU_BUSY", "CPU_BUSY"]
    world.finish_all()


def test_choosing_runs_nobodys_code(folder: Path) -> None:
    install(folder, {"poise.policies": {"mine": "others:POLICY"}, "poise.terms": {"near": "others:near"}})
    (folder / "others.py").write_text("raise SystemExit('run')\n")
    assert choose("mine").foreign
    assert choose_document(document(score={"near": 1})).foreign


def test_the_log_tells_versions_of_a_package_apart(folder: Path) -> None:
    def label(version: str) -> str:
        install(folder, {"poise.policies": {"mine": "others:POLICY"}}, version=version)
        importlib.invalidate_caches()
        choice: Choice = choose("mine")
        shutil.rmtree(next(folder.glob("*.dist-info")))
        return choice.label

    one, other = label("1.0"), label("1.1")
    assert one.startswith("mine@") and one != other


def test_a_near_miss_of_an_installed_term_is_told(folder: Path) -> None:
    install_example(folder)
    with pytest.raises(SpecError) as raised:
        choose_document(document(score={"solitud": 1}))
    assert raised.value.record.hint == "did you mean `solitude`?"
    assert "solitude" in raised.value.record.need


@pytest.mark.parametrize(
    ("group", "source", "says"),
    [
        ("poise.terms", "import nowhere_to_be_found", "cannot be imported: ModuleNotFoundError"),
        ("poise.terms", "", "cannot be imported: AttributeError"),
        ("poise.terms", "mine = 3", "is a `int`, not a function of a Scoring"),
        ("poise.terms", "def mine(scoring): return 1 / 0", "raised ZeroDivisionError"),
        ("poise.terms", "def mine(): return 1", "raised TypeError"),
        ("poise.terms", "def mine(scoring): return 0.5", "gave 0.5 for 2 nodes"),
        ("poise.terms", "def mine(scoring): return [1.0, float('nan')]", "not one finite number for each"),
        ("poise.terms", "def mine(scoring): return ['a', 'b']", "raised"),
        ("poise.rank_terms", "mine = 'fit'", "is a `str`, not a function of a Candidate"),
        ("poise.rank_terms", "def mine(candidate, view): return None", "gave None, not a finite number"),
        ("poise.rank_terms", "def mine(candidate, view): return float('inf')", "gave inf"),
        ("poise.policies", "class mine: name = 'mine'", "is the class `mine`"),
        ("poise.policies", "mine = object()", "has no `name`"),
        ("poise.policies", "from types import SimpleNamespace as S\nmine = S(name='m')", "has no function `decide`"),
        (
            "poise.policies",
            "from types import SimpleNamespace as S\nmine = S(name='m', decide=lambda view: [])",
            "gave a `list`, not a Plan",
        ),
        (
            "poise.policies",
            "from types import SimpleNamespace as S\nfrom poise.model.decisions import *\n"
            "mine = S(name='m', decide=lambda view: Plan(base=1, policy='m', until='soon'))",
            "the plan is malformed",
        ),
        (
            "poise.policies",
            "from types import SimpleNamespace as S\nfrom poise.model.decisions import *\n"
            "mine = S(name='m', decide=lambda view: Plan(base=0, policy='m'))",
            "for revision 0",
        ),
    ],
)
def test_what_does_not_do_is_told_by_entry_point_package_and_problem(
    folder: Path, group: str, source: str, says: str
) -> None:
    install(folder, {group: {"mine": "others:mine"}})
    (folder / "others.py").write_text(source + "\n")
    if group == "poise.policies":
        choice = choose("mine")
    else:
        field = "score" if group == "poise.terms" else "order"
        choice = choose_document(document(**{field: {"mine": 1}}))
    with pytest.raises(SpecError) as raised:
        build(choice)
    assert "`mine` of others 1.0" in str(raised.value)
    assert says in str(raised.value)
    assert raised.value.record.field == f"{group}: mine = others:mine"
    assert raised.value.record.hint


def test_two_packages_with_one_name_are_told(folder: Path) -> None:
    install(folder, {"poise.policies": {"mine": "others:POLICY"}}, package="one")
    install(folder, {"poise.policies": {"mine": "others:POLICY"}}, package="two")
    with pytest.raises(SpecError, match=r"`mine` of two 1.0 .* one 1.0 has one of that name already"):
        choose("mine")


def test_a_shipped_name_is_taken(folder: Path) -> None:
    install(folder, {"poise.terms": {"fit": "others:fit"}})
    with pytest.raises(SpecError, match="Poise has one of that name already"):
        choose_document(document())


def test_what_was_chosen_may_have_gone(folder: Path) -> None:
    install(folder, {"poise.policies": {"mine": "others:POLICY"}})
    choice = choose("mine")
    shutil.rmtree(next(folder.glob("*.dist-info")))
    importlib.invalidate_caches()
    with pytest.raises(SpecError, match="not installed any more"):
        build(choice)


# --- deciding again ---------------------------------------------------------------------------------------------------


def began(choice: Choice, **fields: Any) -> Began:
    """What a control plane that decides by this choice says when it takes the log."""
    recipe = msgspec.to_builtins(choice.recipe) if choice.recipe else {}
    asked = {"code": code_of(choice), "recipe": recipe, **fields}
    return Began(at=1, term=1, policy=choice.label, history=10, version="0.1.0", **asked)


def test_the_policy_that_decided_is_found_again(folder: Path) -> None:
    install_example(folder)
    shipped, file = choose("sjf"), choose_document(document(extends="sjf"))
    theirs, terms = choose("smallest-first"), choose_document(document(score={"solitude": 1}))
    for choice, name in ((shipped, "sjf"), (file, file.label), (theirs, "smallest-first"), (terms, terms.label)):
        found = policy_of(began(choice))
        assert not isinstance(found, str) and found.name == name


def test_other_code_is_told_from_this(folder: Path) -> None:
    install_example(folder)
    theirs = choose_document(document(score={"solitude": 1}))
    then = began(theirs)
    (folder / "example_terms.py").write_text((folder / "example_terms.py").read_text() + "\n# mended\n")
    assert "decided by Poise 0.1.0 with code " in str(policy_of(then))
    assert not isinstance(policy_of(then, anyway=True), str)
    assert "with code unknown, and here" in str(policy_of(began(choose("sjf"), code="")))


def test_what_is_not_here_any_more_says_so(folder: Path) -> None:
    install_example(folder)
    then = [began(choose("smallest-first")), began(choose_document(document(score={"solitude": 1})))]
    shutil.rmtree(next(folder.glob("*.dist-info")))
    assert "there is no policy `smallest-first`" in str(policy_of(then[0], anyway=True))
    assert "`solitude` is not installed any more" in str(policy_of(then[1], anyway=True))
    later = began(choose("sjf"), recipe={"name": "ours", "order": "arrival", "telepathy": True})
    assert "its recipe is not known here" in str(policy_of(later, anyway=True))


LATER = """
from poise.policy.suites import policy_named

class Later:
    name = "later"
    def __init__(self, answer):
        self.answer, self.rounds = answer, 0
    def decide(self, view):
        self.rounds += 1
        return policy_named("fifo").decide(view) if self.rounds == 1 else self.answer()

def dividing():
    return 1 / 0

def leaving():
    raise SystemExit(0)

DIVIDES, LEAVES, FORGETS = Later(dividing), Later(leaving), Later(dict)
"""


@pytest.mark.parametrize(
    ("which", "problem", "have"),
    [
        ("DIVIDES", "the policy `later` raised ZeroDivisionError: division by zero", "others.py:13"),
        ("LEAVES", "the policy `later` raised SystemExit: 0", "others.py:16"),
        ("FORGETS", "the policy `later` gave a plan that is not sound: `decide` gave a `dict`, not a Plan", ""),
    ],
)
def test_what_fails_in_a_twin_is_told_by_policy_and_place(folder: Path, which: str, problem: str, have: str) -> None:
    (folder / "others.py").write_text(LATER)
    install(folder, {"poise.policies": {"later": f"others:{which}"}})
    policy = tried(choose("later"))
    with pytest.raises(SpecError) as caught:
        policy.decide(sample_view())
    record = caught.value.record
    assert (record.message, record.field, record.have) == (problem, "--policy", have)
    assert "write-a-policy.md" in record.hint


def test_what_decided_and_fails_in_a_forecast_is_told(folder: Path) -> None:
    (folder / "others.py").write_text(LATER)
    install(folder, {"poise.policies": {"later": "others:DIVIDES"}})
    policy = policy_of(began(choose("later")))
    assert not isinstance(policy, str)
    with pytest.raises(SpecError, match="the policy `later` raised ZeroDivisionError"):
        policy.decide(sample_view())


def test_what_fails_and_ships_with_poise_is_no_mistake_of_whoever_asked() -> None:
    policy = tried(choose("fifo"))
    assert policy.decide(sample_view()).policy == "fifo"
    with pytest.raises(Fault, match="the policy `fifo` raised AttributeError"):
        policy.decide(None)  # type: ignore[arg-type]


def test_a_policy_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything begins: while it decides, another policy would be named, and no package."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    solving = [
        f"{name}{agnostic}"
        for name in ("max-min", "finish-time-fair", "min-makespan")
        for agnostic in ("", "-agnostic")
    ]
    for name in solving:
        with pytest.raises(SpecError) as caught:
            tried(choose(name))
        record = caught.value.record
        assert (record.message, record.field) == (
            f"the policy `{name}` needs a package that is not installed",
            "--policy",
        )
        assert record.hint == f"`{extra('lp')}`, or a policy that needs none, such as `--policy fifo`"
        assert "`pip install" not in str(policy_of(began(choose("fifo"))))
        assert "needs a package" in str(policy_of(began(choose(name))))
    for name in sorted({*POLICIES} - {*solving}):
        assert tried(choose(name)).name == name
