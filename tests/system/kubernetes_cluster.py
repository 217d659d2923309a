"""A real control plane of Kubernetes on this machine, built by `make kubernetes-parts`: etcd, kube-apiserver,
kube-controller-manager and kube-scheduler of 1.20. Its nodes are those of `kubelet.py`.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import Access, find_access
from poise.errors import InputError
from system.living import free_port, until

PARTS = Path(__file__).resolve().parents[2] / ".peers" / "kubernetes" / "bin"
ETCD = Path(sys.prefix) / "debian" / "usr" / "bin" / "etcd"
BASE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "base"
SCHEDULER = BASE.parent / "scheduler"
SPACE = "poise"
"""The namespace of the base."""

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


class KubernetesCluster:
    """`schedules`: the user of the tests has the rights of a scheduler too. Poise is then the only scheduler, and no
    controller runs.
    """

    def __init__(self, schedules: bool = False) -> None:
        self._schedules = schedules
        self.run = Path(tempfile.mkdtemp(prefix="poise-kubernetes-"))
        self.port = free_port()
        self.tokens = {"admin": secrets.token_hex(16), "user": secrets.token_hex(16)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd = free_port()

    def start(self) -> None:
        self._write_keys()
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self._etcd}"
        self._start(
            "etcd",
            ETCD,
            f"--data-dir={self.run}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self.start_server()
        until(self._is_ready, "the API server answers", self.messages)
        if not self._schedules:
            self._start_others()
        self._apply_base()

    def start_scheduler(self) -> None:
        self._start(
            "kube-scheduler", PARTS / "kube-scheduler", f"--kubeconfig={self.kubeconfig('scheduler', 'admin')}",
            "--port=0", "--secure-port=0", "--leader-elect=false", "--kube-api-qps=5000", "--kube-api-burst=5000",
        )  # fmt: skip

    def _start_others(self) -> None:
        self.start_scheduler()
        manager = self.kubeconfig("manager", "admin")
        self._start(
            "kube-controller-manager", PARTS / "kube-controller-manager", f"--kubeconfig={manager}",
            "--port=0", "--secure-port=0", "--leader-elect=false", "--node-monitor-grace-period=20s",
            f"--service-account-private-key-file={self.run}/account.key", "--use-service-account-credentials=false",
            "--controllers=namespace,garbagecollector,podgc,nodelifecycle,resourcequota,disruption",
        )  # fmt: skip

    def _apply_base(self) -> None:
        """The base, of which the user of the tests has the rights. Its control plane is looked at, and not run."""
        api = Api(self.access("admin"))
        files = [BASE / file for file in yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]]
        for file in [*files, *([SCHEDULER / "rights.yaml"] if self._schedules else [])]:
            for one in yaml.safe_load_all(file.read_text()):
                if "subjects" in one:
                    one["subjects"].append({"kind": "User", "name": "user", "apiGroup": "rbac.authorization.k8s.io"})
                path = PATHS[one["kind"]].format(one["metadata"].get("namespace"))
                api.create(path, one, **({"dryRun": "All"} if file.name == "control.yaml" else {}))

    def start_server(self) -> None:
        without = "ServiceAccount" + (",TaintNodesByCondition" if self._schedules else "")  # a controller takes it off
        self._start(
            "kube-apiserver", PARTS / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self.port}", "--bind-address=127.0.0.1", f"--cert-dir={self.run}/certificates",
            f"--token-auth-file={self.run}/tokens.csv", "--authorization-mode=RBAC",
            f"--service-account-key-file={self.run}/account.key", "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-signing-key-file={self.run}/account.key", "--service-account-issuer=https://poise",
            f"--disable-admission-plugins={without}", "--etcd-compaction-interval=0",
        )  # fmt: skip

    def start_hollow(self, name: str) -> None:
        """A node of kubemark: the code of a real kubelet, which only pretends to have containers. It has joined at the
        end: all of them have the same socket for their containers, and each creates it anew when it starts.
        """
        self._start(
            name, PARTS / "kubemark", "--morph=kubelet", f"--name={name}", "--kubelet-port=0",
            "--kubelet-read-only-port=0", f"--kubeconfig={self.kubeconfig(name, 'admin')}",
        )  # fmt: skip
        api = Api(self.access("admin"))
        until(lambda: _has_joined(api, name), f"{name} has joined", self.messages)

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()

    def access(self, user: str) -> Access:
        return find_access("", {"KUBECONFIG": str(self.kubeconfig(f"{user}-config", user))})

    def kubeconfig(self, name: str, user: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": SPACE}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": f"https://127.0.0.1:{self.port}",
                        "certificate-authority": str(self.run / "certificates" / "apiserver.crt"),
                    },
                }
            ],
            "users": [{"name": "test", "user": {"token": self.tokens[user]}}],
        }
        file = self.run / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    def messages(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.run.glob("*.log")))

    def close(self) -> None:
        for process in reversed(self._processes.values()):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        shutil.rmtree(self.run, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            return bool(Api(self.access("admin")).raw("/readyz", {}) == b"ok")
        except (Away, Refused, InputError):  # it has not made its certificate yet
            return False

    def _write_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        plain = serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        (self.run / "account.key").write_bytes(text)
        lines = [f'{self.tokens["admin"]},admin,1,"system:masters"', f"{self.tokens['user']},user,2"]
        (self.run / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _start(self, name: str, program: Path, *arguments: str) -> None:
        with (self.run / f"{name}.log").open("ab") as messages:
            self._processes[name] = subprocess.Popen(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env={**os.environ, "HOME": str(self.run)},
            )


def _has_joined(api: Api, node: str) -> bool:
    try:
        return bool(api.get(f"/api/v1/nodes/{node}"))
    except Refused:
        return False


@contextlib.contextmanager
def kubernetes(*more: str, schedules: bool = False) -> Iterator[KubernetesCluster]:
    """A control plane; all of it ends with the block. Skips where its parts, or these others, were not built."""
    others = () if schedules else ("kube-controller-manager", "kube-scheduler")
    needed = [PARTS / name for name in ("kube-apiserver", *others, *more)]
    if missing := [path.name for path in needed if not path.exists()]:
        pytest.skip(f"needs {', '.join(missing)}: `make kubernetes-parts` builds them from Debian's source")
    if not ETCD.exists():
        pytest.skip("needs etcd: `make servers` unpacks Debian's etcd-server")
    cluster = KubernetesCluster(schedules)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
