"""Makes and upgrades the SQLite schema.  Nothing but DDL; who calls owns connection and errors.

The number of a database's schema is in `PRAGMA user_version`, and whose it is in `application_id`: a file
of another program is never touched.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

APPLICATION_ID = 0x43485042
"""`CHPB`, in the header of every registry."""


class ForeignDatabase(Exception):
    """A healthy database, but not one of ours."""


class NewerSchema(Exception):
    """A registry of a later version of this program."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The newest schema and the way to it: `upgrades[n]` makes version n out of n − 1."""

    fresh: str
    upgrades: Mapping[int, str]

    @property
    def version(self) -> int:
        return max(self.upgrades, default=1)

    @classmethod
    def read(cls, directory: Traversable) -> "Schema":
        """From `schema.sql` and `upgrades/to-N.sql`.

        :raises ValueError: when a number between 2 and the highest is missing."""
        upgrades = {
            int(found[1]): file.read_text(encoding="utf-8")
            for file in directory.joinpath("upgrades").iterdir()
            if (found := re.fullmatch(r"to-(\d+)\.sql", file.name))
        }
        if sorted(upgrades) != list(range(2, len(upgrades) + 2)):
            raise ValueError(f"the upgrades {sorted(upgrades)} do not count from 2 without a gap")
        return cls(directory.joinpath("schema.sql").read_text(encoding="utf-8"), upgrades)


SCHEMA = Schema.read(files("chappie_broker.store.sqlite"))


def found_version(connection: sqlite3.Connection, schema: Schema) -> int:
    """The version of the database as it is, 0 for an empty one.  Writes nothing.

    :raises NewerSchema: when `schema` does not know that version.
    :raises ForeignDatabase: when the file belongs to another program."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION_ID:
        if application or version or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            raise ForeignDatabase
        return 0
    if version > schema.version:
        raise NewerSchema
    return version


def bring_up(connection: sqlite3.Connection, schema: Schema) -> None:
    """Make an empty database, or upgrade an older one, in one transaction; whoever comes second finds it
    done.  Leaves foreign keys off.

    :raises sqlite3.IntegrityError: when an upgrade would leave a dangling reference; nothing is changed."""
    connection.execute("PRAGMA foreign_keys = OFF")  # a table that is made anew has its children dangle
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = found_version(connection, schema)
        steps = [schema.fresh] if version == 0 else []
        steps += [schema.upgrades[n] for n in range(version + 1, schema.version + 1) if version]
        for step in steps:
            for statement in statements(step):
                connection.execute(statement)
        if connection.execute("PRAGMA foreign_key_check").fetchone():
            raise sqlite3.IntegrityError("the upgrade leaves a dangling reference")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema.version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def statements(script: str) -> Iterator[str]:
    """The statements of a script, each ending with `;` at the end of a line (or before a comment).

    `executescript` would commit the transaction that must hold them together."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if re.sub(r"--.*", "", statement).strip():
        raise ValueError("the script ends in the middle of a statement")
