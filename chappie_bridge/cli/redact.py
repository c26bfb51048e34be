"""Keeps secrets out of the logs: what looks like one, in whatever a library chooses to print."""

import logging
import re

_SECRETS = re.compile(
    r"(?i)"
    r"(\bauthorization\b\W{1,6}(?:b['\"])?(?:bearer|basic)\s+|\bx-chappie-key\b\W{1,6}(?:b['\"])?|\bbearer\s+"
    r"|[?&](?:sig|signature|token|key|code|chatid|x-amz-[a-z-]+)=)"
    r"[^\s&'\",;)\]]+"
)


def redact(text: str) -> str:
    """`text` with `…` in place of credentials and of signed parts of URLs."""
    return _SECRETS.sub(r"\1…", text)


class Redacting(logging.Filter):
    """Rewrites each record once its arguments are filled in."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # a library's own mistake must not cost the line
            message = str(record.msg)
        record.msg, record.args = redact(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return True
