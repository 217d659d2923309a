"""A node of Kubernetes whose Pods are processes of this machine: there is no container here, and no image.

It registers its node, runs what is bound to it, keeps files of Secrets and annotations up to date, tries the probe,
says how Pods end, and kills what a deleted Pod has left when its grace period is over. It speaks with any API server.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import Access
from system.living import kill

LOOK_SECONDS = 0.2
RENEW_SECONDS = 5.0

Object = dict[str, Any]


class _Run:
    """A Pod here: its folder in place of its file system, and its first process."""

    def __init__(self, pod: Object, folder: Path) -> None:
        self.uid, self.folder = pod["metadata"]["uid"], folder
        self.process: subprocess.Popen[bytes] | None = None
        self.killed_at: float | None = None
        self.told: Object = {}


class Kubelet:
    def __init__(self, access: Access, name: str, folder: Path, variables: dict[str, str], cpu: int = 2) -> None:
        self.name, self._folder, self._variables, self._cpu = name, folder, variables, cpu
        self._api = Api(access)
        self._runs: dict[str, _Run] = {}
        self._renewed = -RENEW_SECONDS
        self._over = threading.Event()
        self._pauses = False
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, name=f"kubelet-{name}", daemon=True)

    def start(self) -> None:
        folder = self._folder / self.name
        folder.mkdir(parents=True)
        label = {"kubernetes.io/hostname": self.name}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": label}}
        with contextlib.suppress(Refused):  # it was here before
            self._api.create("/api/v1/nodes", body)
        self._renew()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        for run in self._runs.values():
            self._kill(run)
        self._api.close()

    def pause(self, pauses: bool) -> None:
        """Whether it is cut off from the API server; its processes go on."""
        self._pauses = pauses

    def output(self, uid: str) -> bytes | None:
        """The output of a Pod; None if it never ran here."""
        run = self._runs.get(uid)
        return (run.folder / "container.log").read_bytes() if run is not None else None

    def processes(self) -> list[int]:
        return [pid for run in self._runs.values() for pid in _processes_of(run.folder)]

    # --- its work -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._pauses:
                continue
            try:
                self._renew()
                self._look()
            except (Away, Refused) as error:
                self.failed.append(str(error))

    def _renew(self) -> None:
        """Its status, which a real node repeats too."""
        if monotonic() - self._renewed < RENEW_SECONDS:
            return
        amounts = {"cpu": str(self._cpu), "memory": "4Gi", "pods": "20"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        with contextlib.suppress(Refused):
            status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
            self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
            self._renewed = monotonic()

    def _look(self) -> None:
        found = self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")["items"]
        there = {pod["metadata"]["uid"]: pod for pod in found}
        for uid in self._runs.keys() - there.keys():  # its record was removed by force
            self._kill(self._runs.pop(uid))
        for uid, pod in there.items():
            if pod["status"].get("phase") in ("Succeeded", "Failed") and uid not in self._runs:
                continue
            if uid not in self._runs:
                self._runs[uid] = _Run(pod, self._folder / self.name / uid[:13])
            self._keep(self._runs[uid], pod)

    def _keep(self, run: _Run, pod: Object) -> None:
        self._write_volumes(run, pod)
        if run.process is None and not pod["metadata"].get("deletionTimestamp"):
            run.process = self._start(run, pod)
        code = run.process.poll() if run.process is not None else 0
        deleted = pod["metadata"].get("deletionTimestamp")
        if deleted and code is None and run.process is not None:
            if run.killed_at is None:
                run.process.terminate()
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            until = monotonic() + grace
            run.killed_at = until if run.killed_at is None else min(run.killed_at, until)
            if monotonic() >= run.killed_at - LOOK_SECONDS:
                run.process.kill()
                code = run.process.wait()
        if code is None:
            ready = "True" if self._is_ready(run, pod) else "False"
            self._say(run, pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]})
            return
        self._kill(run)
        over = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": {"exitCode": code or 0}}}
        phase = "Failed" if code else "Succeeded"
        self._say(run, pod, {"phase": phase, "conditions": [], "containerStatuses": [over]})
        if deleted:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": run.uid}}
            with contextlib.suppress(Refused):
                self._api.delete(_path(pod), body)
            self._runs.pop(run.uid, None)
            shutil.rmtree(run.folder, ignore_errors=True)

    def _start(self, run: _Run, pod: Object) -> "subprocess.Popen[bytes]":
        [container] = pod["spec"]["containers"]
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | self._variables
        for of in container.get("env", ()):
            field = of.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[of["name"]] = pod["metadata"]["name"] if field == "metadata.name" else of["value"]
        command = [self._inside(run, word) for word in container["command"]]
        if command[0] == "python":
            command[0] = sys.executable
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / "container.log").open("ab") as messages:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env=environment,
                cwd=run.folder,
                start_new_session=True,
            )

    def _is_ready(self, run: _Run, pod: Object) -> bool:
        probe = pod["spec"]["containers"][0].get("readinessProbe", {}).get("exec", {}).get("command")
        if not probe:
            return True
        return (
            subprocess.run([self._inside(run, word) for word in probe], check=False, capture_output=True).returncode
            == 0
        )

    def _write_volumes(self, run: _Run, pod: Object) -> None:
        [container] = pod["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
        for volume in pod["spec"].get("volumes", ()):
            if volume["name"] not in mounts:
                continue
            folder = Path(self._inside(run, mounts[volume["name"]]))
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in self._files(volume, pod).items():
                if not (folder / name).exists() or (folder / name).read_bytes() != content:
                    (folder / f".{name}").write_bytes(content)
                    (folder / f".{name}").rename(folder / name)

    def _files(self, volume: Object, pod: Object) -> dict[str, bytes]:
        if "secret" in volume:
            space = pod["metadata"]["namespace"]
            path = f"/api/v1/namespaces/{space}/secrets/{volume['secret']['secretName']}"
            try:
                data = self._api.get(path).get("data") or {}
            except Refused:
                return {}
            return {name: base64.b64decode(value) for name, value in data.items()}
        files = {}
        for item in volume.get("downwardAPI", {}).get("items", ()):
            name = re.fullmatch(r"metadata\.annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])
            assert name is not None
            files[item["path"]] = (pod["metadata"].get("annotations") or {}).get(name[1], "").encode()
        return files

    def _say(self, run: _Run, pod: Object, status: Object) -> None:
        if status != run.told:
            with contextlib.suppress(Refused):
                self._api.patch(f"{_path(pod)}/status", {"status": status})
                run.told = json.loads(json.dumps(status))

    def _kill(self, run: _Run) -> None:
        """Everything that is left in its container."""
        while left := _processes_of(run.folder):
            for pid in left:
                kill(pid)
        if run.process is not None:
            run.process.wait()

    def _inside(self, run: _Run, text: str) -> str:
        return re.sub(r"(?<![\w/])/poise(?=/|\b)", str(run.folder), text)


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _processes_of(folder: Path) -> list[int]:
    """Those that name the folder of a Pod in their arguments or environment, and live."""
    found, name = [], os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                everything = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if name in everything and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(entry.name))
    return found
