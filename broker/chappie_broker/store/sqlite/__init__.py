"""The registry on SQLite: two adapters of the port, and what a person may do with the file."""

from .adapter import InlineSqliteStore, SqliteStore
from .database import Options
from .files import move_aside

__all__ = ["InlineSqliteStore", "Options", "SqliteStore", "move_aside"]
