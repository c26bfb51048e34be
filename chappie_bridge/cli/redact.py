"""Keeps secrets out of the logs: every record of every process passes here before it is written."""

import logging

from chappie_bridge.codec.redact import redact


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
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True
