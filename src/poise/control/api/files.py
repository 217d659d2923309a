"""Routes of the files of jobs: what a client sends before a job, and what the nodes of the job get."""

from typing import Annotated

import msgspec

from poise.control.api.parts import SUBMITTER, Parts
from poise.control.guard import secret_of
from poise.control.hot import attempt_named
from poise.control.routes import Content, Request, Routes
from poise.drivers.security import same_token
from poise.errors import Denied, NotFound, SpecError
from poise.kernel.ledger import JobState
from poise.model.calls import ATTEMPT
from poise.model.tenants import Bearer
from poise.model.trees import HASH, owner_of

TreeHash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, files, gate = parts.plane, parts.files, parts.gate

    @routes.post(
        "/v1/files/missing",
        summary="Which of these pieces of files were not sent yet: SHA-256 hashes of 32 bytes each, in a row",
        status=200,
        role=SUBMITTER,
    )
    async def missing_files(bearer: Bearer, data: bytes) -> Content:
        return _raw(await files.ask("missing", owner_of(bearer.tenant, bearer.account), data=whole_hashes(data)))

    @routes.post(
        "/v1/files", summary="Send pieces of files: a MessagePack list of binaries of 1 MiB at most", role=SUBMITTER
    )
    async def send_files(bearer: Bearer, data: bytes) -> dict[str, int]:
        plane.check_leading()
        return {"stored": int(await files.ask("put", owner_of(bearer.tenant, bearer.account), data=data))}

    @routes.post(
        "/v1/trees/{tree}",
        summary="Register a tree by the hash of its manifest, with the hashes of its pieces; answers with the hashes "
        "of missing pieces of its files",
        status=200,
        role=SUBMITTER,
    )
    async def register_tree(bearer: Bearer, tree: TreeHash, data: bytes) -> Content:
        plane.check_leading()
        return _raw(
            await files.ask(
                "register", owner_of(bearer.tenant, bearer.account), bytes.fromhex(tree), whole_hashes(data)
            )
        )

    @routes.get("/v1/trees/{tree}", summary="The hashes of the pieces of a tree's manifest", role=SUBMITTER)
    async def known_tree(bearer: Bearer, tree: TreeHash) -> Content:
        return _raw(await files.ask("pieces", owner_of(bearer.tenant, bearer.account), bytes.fromhex(tree)))

    def job_of_attempt(request: Request) -> JobState:
        """Return the job of the attempt whose key a request carries. Raises `Denied`."""
        attempt = attempt_named(request.headers)
        job = plane.ledger.jobs.get(attempt.task.partition(".")[0]) if attempt is not None else None
        if attempt is None or not same_token(secret_of(request.headers), parts.key_of(attempt)) or job is None:
            error = Denied("this is not the key of the attempt", field=ATTEMPT, have=str(attempt or "none")[:80])
            gate.refused(error, "/v1/attempts/files")
            raise error
        return job

    @routes.post(
        "/v1/attempts/files",
        summary="With the key of an attempt, which its node has: pieces of the files of its job, as many as fit into "
        "an answer, as a MessagePack list; for no hashes, the hashes of the pieces of its manifest",
        status=200,
    )
    async def files_of_attempt(request: Request, data: bytes) -> Content:
        job = job_of_attempt(request)
        if job.tree is None:
            raise NotFound("the job has no files", field="job", have=job.id)
        if data:
            return _raw(await files.ask("get", owner_of(job.tenant, job.account), data=whole_hashes(data)))
        return _raw(await files.ask("pieces", owner_of(job.tenant, job.account), bytes.fromhex(job.tree.hash)))


def whole_hashes(data: bytes) -> bytes:
    """Return the hashes in a request. Raises SpecError if the length is not a multiple of the hash size."""
    if len(data) % HASH:
        raise SpecError("these are no hashes", field="data", need=f"{HASH} bytes each", have=f"{len(data)} bytes")
    return data


def _raw(data: bytes) -> Content:
    return Content(data, "application/octet-stream")
