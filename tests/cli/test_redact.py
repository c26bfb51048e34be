"""S21: what looks like a secret never reaches a log."""

import logging

import pytest
from chappie_broker.codes import OneTimeCodes

from chappie_bridge.cli.redact import Redacting
from chappie_bridge.codec.redact import redact

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
        f"[(b'cookie', b'session={SECRET}')]",
        f"Set-Cookie: chappie={SECRET}; HttpOnly",
        f"POST /token grant_type=refresh&refresh_token={SECRET}",
        f'{{"access_token": "{SECRET}", "expires_in": 3600}}',
        f"{{'client_secret': '{SECRET}'}}",
    ],
)
def test_a_credential_is_left_out(text: str) -> None:
    """S21: headers in any dress, signed URLs, capabilities."""
    assert SECRET not in redact(text)
    assert "…" in redact(text)


def test_a_one_time_code_is_left_out() -> None:
    """S21: wherever it stands."""
    code = OneTimeCodes(lambda: 0.0).make("pair")
    assert code not in redact(f"chappie-bridge join {code}, please")
    assert code.lower() not in redact(code.lower())


def test_what_is_no_credential_stays() -> None:
    assert redact('{"code":"session_offline"}') == '{"code":"session_offline"}'
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
