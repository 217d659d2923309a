"""The schema and its creation."""

from typing import Any

from poise.errors import newer
from poise.model.record import FORMAT
from poise_ha.postgres.link import PostgresLink

_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS poise;
CREATE TABLE IF NOT EXISTS poise.about(name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE IF NOT EXISTS poise.log(revision bigint PRIMARY KEY, record bytea NOT NULL);
CREATE TABLE IF NOT EXISTS poise.checkpoint(
    revision bigint PRIMARY KEY, state bytea NOT NULL, checksum bigint NOT NULL);
CREATE TABLE IF NOT EXISTS poise.leadership(
    term bigint NOT NULL, holder text NOT NULL, address text NOT NULL, token text NOT NULL,
    renewed timestamptz NOT NULL, lasts interval NOT NULL);
INSERT INTO poise.leadership SELECT 0, '', '', '', '-infinity', '0' WHERE NOT EXISTS (SELECT FROM poise.leadership);
"""
_SAY_FORMAT = "INSERT INTO poise.about VALUES ('format', $1) ON CONFLICT DO NOTHING"
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('poise'))"  # two processes may start at once


def settle(link: PostgresLink) -> None:
    """Create missing tables; raises `StoreNewer` for tables of a newer Poise."""
    link.ask(_settle)


async def about(connection: Any, name: str) -> str:
    return await connection.fetchval("SELECT value FROM poise.about WHERE name = $1", name) or ""


async def _settle(connection: Any) -> None:
    if await connection.fetchval("SELECT to_regclass('poise.about')") is None:
        async with connection.transaction():
            await connection.execute(_LOCK)
            await connection.execute(_SCHEMA)
            await connection.execute(_SAY_FORMAT, str(FORMAT))
    version = int(await about(connection, "format"))
    if version > FORMAT:
        raise newer(f"the log has format {version}; this version reads {FORMAT}", await about(connection, "written_by"))
