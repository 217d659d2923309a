"""An installed package of policies of others, each bad in its own way, and well behaved while it is tried."""

from pathlib import Path

POLICIES_OF_OTHERS = '''
import ctypes, os, sys, time
from pathlib import Path
from types import SimpleNamespace

from poise.model.decisions import Place, Plan, Spot, Why
from poise.policy.suites import policy_named

WHY = Why(policy="theirs")


class Theirs:
    """Well behaved on the view that it is tried on; live, it does what it is made of."""

    name = "theirs"

    def __init__(self, act):
        self._act = act

    def decide(self, view):
        tried = view.fleet.names == ("sample-1", "sample-2")
        idle = not view.candidates or not len(view.fleet)
        return policy_named("fifo").decide(view) if tried or idle else self._act(view)


def lies(view):
    place = Place(unit=view.candidates[0].unit, spots=(Spot(view.fleet.names[0], (99,)),), why=WHY)
    return Plan(base=view.revision, policy="theirs", decisions=(place,))
def raises(view): raise LookupError("I have no idea")
def leaves(view): sys.exit(5)
def ends(view): os._exit(6)
def crashes(view): ctypes.string_at(0)
def waits(view): time.sleep(10)
def no_plan(view): return ["place", "everything"]
def wrong_type(view): return Plan(base=view.revision, policy="theirs", decisions="all of them")
def unknown(view):
    place = Place(unit="j77.main", spots=(Spot("moon"),), why=WHY)
    return Plan(base=view.revision, policy="theirs", decisions=(place,), memory={"lie": 1})
def spins(view):
    while True:
        pass
def eats(view):
    eaten = []
    while True:
        eaten.append(bytearray(2**26))
def prints(view):
    print("x" * 10_000)
    return policy_named("fifo").decide(view)
def moody(view):
    if Path(os.environ["MOOD"]).exists():
        raise LookupError("not now")
    return policy_named("sjf").decide(view)


RAISES, LEAVES, ENDS, CRASHES, WAITS, NO_PLAN, WRONG_TYPE, UNKNOWN, SPINS, EATS, PRINTS, MOODY, LIES = map(
    Theirs, (raises, leaves, ends, crashes, waits, no_plan, wrong_type, unknown, spins, eats, prints, moody, lies)
)


class Hangs:
    name = "hangs"
    def decide(self, view):
        while True:
            pass


class Falls(Hangs):
    def decide(self, view):
        ctypes.string_at(0)


HANGS, FALLS = Hangs(), Falls()


def bad_term(scoring):
    if scoring.fleet.names == ("sample-1", "sample-2"):
        return [0.5, 0.5]
    return float("nan")
'''
NAMES = ("raises", "leaves", "ends", "crashes", "waits", "no-plan", "wrong-type", "unknown", "spins", "eats", "prints",
         "moody", "lies")  # fmt: skip


def install_theirs(folder: Path) -> None:
    """Make the package in a folder that is on the path of Python's imports."""
    points = [f"{name} = their_policies:{name.upper().replace('-', '_')}" for name in (*NAMES, "hangs", "falls")]
    install(folder, "theirs", ["[poise.policies]", *points, "[poise.terms]", "bad-term = their_policies:bad_term"])
    (folder / "their_policies.py").write_text(POLICIES_OF_OTHERS)


def install(folder: Path, package: str, entry_points: list[str]) -> None:
    """What tells Python of a package and its entry points."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(entry_points) + "\n")
