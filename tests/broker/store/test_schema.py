"""The schema: fresh and upgraded databases are the same, and strangers' files are left alone."""

import re
import sqlite3
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest
from chappie_broker.store import rows
from chappie_broker.store.port import StoreDamaged, StoreTooNew
from chappie_broker.store.sqlite.database import DEFAULTS, Options, open_connection
from chappie_broker.store.sqlite.schema import SCHEMA, Schema, statements

OLD = Path(__file__).parent / "old"
"""`schema-N.sql` of each version that was ever released and is not the newest."""

TABLES = {
    "device": rows.Device,
    "session": rows.Session,
    "conversation": rows.Conversation,
    "binding": rows.Binding,
    "operation": rows.Operation,
    "transfer": rows.Transfer,
    "request_key": rows.RequestKey,
    "delivery": rows.Delivery,
    "question": rows.Question,
    "app": rows.App,
    "app_grant": rows.AppGrant,
    "subject": rows.Subject,
    "audit": rows.AuditLine,
}

NEXT = Schema(
    fresh=SCHEMA.fresh.replace(
        "    revoked_at REAL                       -- its token is refused since then\n",
        "    revoked_at REAL,                      -- its token is refused since then\n"
        "    note       TEXT                       -- synthetic\n",
    ).replace(
        "    value TEXT NOT NULL              -- never changes\n",
        "    value TEXT NOT NULL,             -- never changes\n    made_at REAL NOT NULL DEFAULT 0\n",
    )
    + "CREATE INDEX device_name ON device (name);\n",
    upgrades={
        **SCHEMA.upgrades,
        SCHEMA.version + 1: "-- A column, an index.\nALTER TABLE device ADD COLUMN note TEXT;\n"
        "CREATE INDEX device_name ON device (name);\n",
        SCHEMA.version + 2: "-- A table made anew.\nALTER TABLE meta RENAME TO old_meta;\n"
        "CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL,\n"
        "made_at REAL NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;\n"
        "INSERT INTO meta (name, value) SELECT name, value FROM old_meta;\nDROP TABLE old_meta;\n",
    },
)
"""Two versions that were never released, to have the way of upgrading walked from the first day."""


def dump(connection: sqlite3.Connection) -> list[str]:
    """Everything in the database as sorted text, without comments and white space, and the version."""
    version = connection.execute("PRAGMA user_version").fetchone()
    application = connection.execute("PRAGMA application_id").fetchone()
    lines = [re.sub(r'\s+|"', "", re.sub(r"--.*", "", line)) for line in connection.iterdump()]
    return [f"{version} {application}", *sorted(lines)]


def fresh(path: Path, schema: Schema) -> list[str]:
    connection = open_connection(path, Options(schema=schema))
    found = dump(connection)
    connection.close()
    return found


def test_an_upgraded_database_is_a_fresh_one(tmp_path: Path) -> None:
    """B87: each version that was ever released comes out equal to the newest schema."""
    olds = {
        int(found[1]): file for file in OLD.glob("*.sql") if (found := re.search(r"-(\d+)\.sql", file.name))
    }
    assert sorted(olds) == list(range(1, SCHEMA.version))
    for number, file in olds.items():
        path = tmp_path / f"{number}.db"
        upgrades = {step: text for step, text in SCHEMA.upgrades.items() if step <= number}
        fresh(path, Schema(file.read_text(encoding="utf-8"), upgrades))
        assert fresh(path, SCHEMA) == fresh(tmp_path / "fresh.db", SCHEMA)


def test_the_way_of_upgrading_is_walked_by_two_versions_that_were_never_released(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "old.db", DEFAULTS)
    connection.execute("INSERT INTO device VALUES ('d', 'n', 'h', 1, 2, NULL)")
    connection.execute("INSERT INTO session VALUES ('s', 'd', 'a', '/', 1, 2, NULL, NULL, NULL, NULL)")
    connection.execute("INSERT INTO meta VALUES ('key', 'kept')")
    connection.close()
    connection = open_connection(tmp_path / "old.db", Options(schema=NEXT))
    assert connection.execute("SELECT * FROM meta").fetchall() == [("key", "kept", 0.0)]
    assert connection.execute("SELECT note FROM device").fetchall() == [(None,)]
    connection.execute("DELETE FROM session")
    connection.execute("DELETE FROM device")
    connection.execute("DELETE FROM meta")
    upgraded = dump(connection)
    connection.close()
    assert upgraded == fresh(tmp_path / "fresh.db", NEXT)
    assert upgraded[0].startswith(f"({SCHEMA.version + 2},)")


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    before = fresh(path, SCHEMA)
    step = "ALTER TABLE device ADD COLUMN note TEXT;\nSELECT nonsense;\n"
    broken = Schema(SCHEMA.fresh, {**SCHEMA.upgrades, SCHEMA.version + 1: step})
    with pytest.raises(sqlite3.OperationalError, match="nonsense"):
        open_connection(path, Options(schema=broken))
    assert fresh(path, SCHEMA) == before


def test_an_upgrade_may_not_leave_a_dangling_reference(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = open_connection(path, DEFAULTS)
    connection.execute("INSERT INTO device VALUES ('d', 'n', 'h', 1, 2, NULL)")
    connection.execute("INSERT INTO session VALUES ('s', 'd', 'a', '/', 1, 2, NULL, NULL, NULL, NULL)")
    connection.close()
    broken = Schema(SCHEMA.fresh, {**SCHEMA.upgrades, SCHEMA.version + 1: "DELETE FROM device;\n"})
    with pytest.raises(sqlite3.IntegrityError, match="dangling"):
        open_connection(path, Options(schema=broken))
    connection = open_connection(path, DEFAULTS)
    assert connection.execute("SELECT count(*) FROM device").fetchone() == (1,)
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    connection.close()


def test_a_newer_registry_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    fresh(path, NEXT)
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="newer version"):
        open_connection(path, DEFAULTS)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE precious (x)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="another program"):
        open_connection(path, DEFAULTS)
    assert path.read_bytes() == before


def test_upgrades_count_without_a_gap(tmp_path: Path) -> None:
    (tmp_path / "upgrades").mkdir()
    (tmp_path / "schema.sql").write_text("SELECT 1;", encoding="utf-8")
    (tmp_path / "upgrades" / "README.md").write_text("Words.", encoding="utf-8")
    assert Schema.read(tmp_path).version == 1
    (tmp_path / "upgrades" / "to-2.sql").write_text("SELECT 2;", encoding="utf-8")
    (tmp_path / "upgrades" / "to-3.sql").write_text("SELECT 3;", encoding="utf-8")
    assert Schema.read(tmp_path) == Schema("SELECT 1;", {2: "SELECT 2;", 3: "SELECT 3;"})
    (tmp_path / "upgrades" / "to-2.sql").unlink()
    with pytest.raises(ValueError, match="without a gap"):
        Schema.read(tmp_path)


def test_a_script_is_cut_into_its_statements() -> None:
    script = "-- Words; more.\nCREATE TABLE a (x TEXT CHECK (x <> ';')); -- why; so\nSELECT 1;\n\n-- end\n"
    assert [part.splitlines()[-1] for part in statements(script)] == [
        "CREATE TABLE a (x TEXT CHECK (x <> ';')); -- why; so",
        "SELECT 1;",
    ]
    with pytest.raises(ValueError, match="middle"):
        list(statements("SELECT 1;\nSELECT"))


def test_each_column_is_a_field_in_its_place_and_has_a_comment(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "a.db", DEFAULTS)
    tables = {
        str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    assert tables == {*TABLES, "meta"}
    text = files("chappie_broker.store.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")
    for table in tables:
        columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
        if table in TABLES:
            assert columns == [field.name for field in fields(TABLES[table])]
        body = text.partition(f"CREATE TABLE {table} (")[2].partition("\n)")[0]
        for column in columns:
            assert re.search(rf"^    {column} .*-- \S", body, flags=re.MULTILINE), (table, column)
        assert connection.execute(
            "SELECT strict FROM pragma_table_list WHERE name = ?", [table]
        ).fetchone() == (1,)
    connection.close()
