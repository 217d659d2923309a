"""Row 27: policies of others."""

import os
import time

from system.living import PATIENCE, until
from system.theirs import install_theirs

from chaos.turns import Observer, Stage, Turn

# --- 27: policies of others ------------------------------------------------------------------------------------------


def policy_fails(policy: str, says: str, living: Stage) -> Turn:
    """The safe policy takes over; the log says what happened; nobody is restarted."""
    packages = living.work / "packages"
    packages.mkdir()
    install_theirs(packages)
    paths = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    up = living.poise("up", "--port", "0", "--policy", policy, PYTHONPATH=paths)
    assert up.code == 0, up.err
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    control = living.pid("control")
    observer = Observer(living)
    begun = time.monotonic()
    job = living.client().submit({"run": ["true"]})
    noticed, failed = observer.until("policy-failed")
    placed, decision = observer.until("placed", unit=f"{job}.main")
    assert "POLICY_FAILED" in failed["error"] and says in failed["error"], failed
    assert decision["why"]["policy"] == "fifo", decision
    assert living.client().wait(job, PATIENCE).status == "done"
    assert living.pid("control") == control
    return Turn([noticed - begun], [max(0.0, placed - noticed)])
