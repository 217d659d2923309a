"""A home whose nodes come from a substrate: what its tests do, whatever the substrate is."""

from system.living import Living, free_port, until


class OnSubstrate:
    """A home, and the substrate of its nodes."""

    living: Living

    def messages(self) -> str:
        """What to show when a test fails."""
        raise NotImplementedError

    def up(self, on: str) -> None:
        done = self.living.poise("up", "--port", "0", "--on", on, "--listen", f"127.0.0.1:{free_port()}")
        assert done.code == 0, done.err

    def submit(self, run: str, **fields: object) -> str:
        return self.living.client().submit({"run": ["sh", "-c", run], "resources": {"cpu": 1}, **fields})

    def until_running(self, job: str, epoch: int = 1) -> str:
        """The node that it runs on."""
        client = self.living.client()
        until(
            lambda: client.job(job).status == "running" and client.job(job).tasks[0].epoch == epoch,
            f"{job} runs",
            lambda: self.messages() + self.living.poise("explain", job).text,
        )
        return client.job(job).tasks[0].node
