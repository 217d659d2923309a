"""A small portion of `make schemathesis`: a gateway does what its OpenAPI document says, and nothing else."""

from fuzz.api import gateway, serving

SHORT = ("--phases", "coverage,fuzzing", "--max-examples", "5")


def test_a_gateway_keeps_to_its_document() -> None:
    with serving() as (living, served):
        assert gateway(living, served, [*SHORT, "--exclude-path-regex", "^/v1/(chat|embeddings)"]) == 0
