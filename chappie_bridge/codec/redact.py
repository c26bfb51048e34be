"""What looks like a secret, in whatever text: the one place that knows.  Decides nothing else."""

import re

_SECRETS = re.compile(
    r"(?i)"
    # A header of a request or an answer in any dress: `Name: value`, a dict's item, a pair of bytes.
    r"(\b(?:authorization|proxy-authorization)\b\W{1,6}(?:b['\"])?(?:bearer|basic)\s+|\bbearer\s+"
    r"|\b(?:x-chappie-key|set-cookie|cookie)\b\W{1,6}(?:b['\"])?(?:[a-z0-9_-]+=)?"
    # A part of a URL's query, or of a form.
    r"|[?&](?:sig|se|sp|signature|policy|key-pair-id|token|access_token|refresh_token|id_token|key|code"
    r"|code_verifier|client_secret|password|chatid|state|x-(?:amz|goog|ms)-[a-z-]+)=)"
    r"[^\s&'\",;)\]]+"
    # A field of JSON or of a printed dict.
    r"|(['\"](?:access_token|refresh_token|id_token|client_secret|code_verifier|token|secret|password)"
    r"['\"]\s*[:=]\s*b?['\"])[^'\"]+"
    # A one-time code, wherever it stands.
    r"|\b()[0-9A-HJKMNP-TV-Z]{4}(?:-[0-9A-HJKMNP-TV-Z]{4}){3}\b"
)


def redact(text: str) -> str:
    """`text` with `…` in place of credentials, one-time codes and the signed parts of URLs."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2] or ''}…", text)
