"""S21: what looks like a secret never reaches a log."""

import logging

import pytest

from chappie_bridge.cli.redact import Redacting, redact

SECRET = "q-Vs_0" * 8


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: basic {SECRET}",
        f"headers {{'Authorization': 'Bearer {SECRET}'}}",
        f"[(b'x-chappie-key', b'{SECRET}')]",
        f"X-Chappie-Key: {SECRET}",
        f"bearer {SECRET}",
        f"GET https://files.example/a?sig={SECRET}&x=1",
        f"GET https://files.example/a?x=1&X-Amz-Signature={SECRET}",
        f"chappie://session/s/file/u/name?chatId={SECRET}",
    ],
)
def test_a_credential_is_left_out(text: str) -> None:
    """S21: headers in any dress, signed URLs, capabilities."""
    assert SECRET not in redact(text)
    assert "…" in redact(text)


def test_what_is_no_credential_stays() -> None:
    text = "GET /mcp?page=2 200, 3 bearers of bad news; keys: a, b"
    assert redact(text) == text


def test_arguments_and_tracebacks_are_redacted_too() -> None:
    """S21: whatever a library hands to the logger."""
    try:
        raise ValueError(f"Bearer {SECRET}")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "sent %s", (f"Bearer {SECRET}",), info)
    assert Redacting().filter(record)
    assert SECRET not in logging.Formatter().format(record)


def test_a_line_with_wrong_arguments_is_kept() -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "%d things", ("no number",), None)
    assert Redacting().filter(record)
    assert record.getMessage() == "%d things"
