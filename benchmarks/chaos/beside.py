"""The same kills for the peers that are installed, and for Poise in the same turns."""

import sys
import time
from typing import Any

import peers
from harness import Figure, say
from system.living import Living, kill

from chaos.processes import SUBMISSIONS

sys.path.append(str(peers.SCRIPTS))
import killing

# --- beside the peers ------------------------------------------------------------------------------------------------

DELAYS = (0, 3)
POISE = "Poise"


def measure(repeats: int) -> list[Figure]:
    """The same two kills for the peers that are installed, and for Poise in the same turns.

    Of twenty commands of half a second, each acknowledged, how many were done in the end, when the control plane was
    killed so many seconds after the last one and started again; and how soon work runs again whose worker was killed,
    under the defaults of each system (Poise pauses for a second before the first retry).
    """
    systems = [POISE, *(peer.name for peer in peers.PEERS.values() if peer.killed)]
    killed = {f"{delay} s": ("control", str(delay)) for delay in DELAYS} | {"worker": ("worker",)}
    values: dict[tuple[str, str], list[float]] = {}
    notes: dict[tuple[str, str], str] = {}
    for _ in range(repeats):
        for what, arguments in killed.items():
            for system in systems:
                try:
                    answer = _own(*arguments) if system == POISE else _theirs(system, *arguments)
                except peers.Absent as why:
                    notes[system, what] = f"absent: {why}"
                    continue
                value = answer["again" if what == "worker" else "done"]
                if value is None:
                    notes[system, what] = "not run again while it was looked at"
                else:
                    values.setdefault((system, what), []).append(value)
                say(f"{system}, {what}: {answer}")
    figures = []
    for what in killed:
        for system in systems:
            found, note = values.get((system, what), []), notes.get((system, what), "")
            if what == "worker":
                name = f"kill -9 of a worker, its work runs again: {system}"
                figures.append(Figure(name=name, unit="s", values=found, note=note))
            else:
                name = f"{SUBMISSIONS} acknowledged, control plane killed {what} later, done in the end: {system}"
                limit = float(SUBMISSIONS) if system == POISE else None
                figures.append(Figure(name=name, unit="", values=found, limit=limit, larger=True, note=note))
    return figures


def _theirs(system: str, *arguments: str) -> dict[str, Any]:
    return peers.ask(peers.FOLDER, system, peers.PEERS[system].killed, *arguments)


def _own(what: str, delay: str = "0") -> dict[str, Any]:
    living = Living()
    try:
        living.up()
        client = living.client()
        if what == "worker":
            noted = living.work / "noted"
            client.submit({"run": killing.once(noted)})
            return {"again": killing.again_after_kill(noted)}
        for number in range(SUBMISSIONS):
            client.submit({"run": killing.command(living.work, number)})
        time.sleep(float(delay))
        kill(living.pid("control"))
        return {"done": float(killing.done_in_the_end(living.work))}
    finally:
        living.destroy()
