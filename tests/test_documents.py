"""The documents say what the code does."""

import re
from pathlib import Path

import pytest

from chappie_bridge.cli import COMMANDS
from chappie_bridge.wire.batch import BATCH
from chappie_bridge.wire.machine import Table
from chappie_bridge.wire.question import QUESTION
from chappie_bridge.wire.session import SESSION
from chappie_bridge.wire.transfer import TRANSFER

REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize("table", [SESSION, BATCH, TRANSFER, QUESTION], ids=lambda table: table.name)
def test_the_tables_in_the_architecture_are_the_codes_own(table: Table) -> None:
    """To write them anew: `python -m tests.test_documents`."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert _with_table(text, table) == text


def test_every_file_that_a_document_links_to_exists() -> None:
    for document in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")):
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_readme_names_every_command() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"`{name}`" not in text]


def test_the_readme_says_how_to_run_the_tests() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "make up" in text
    assert "make test" in text


def _with_table(text: str, table: Table) -> str:
    found = re.search(rf"(<!-- table: {table.name} -->\n).*?(<!-- end -->)", text, re.DOTALL)
    assert found is not None, f"no place for the table {table.name}"
    return f"{text[: found.end(1)]}{table.render()}\n{text[found.start(2) :]}"


if __name__ == "__main__":
    path = REPOSITORY / "ARCHITECTURE.md"
    written = path.read_text(encoding="utf-8")
    for each in (SESSION, BATCH, TRANSFER, QUESTION):
        written = _with_table(written, each)
    path.write_text(written, encoding="utf-8")
