"""The page on which the owner lets an app in.  Pure: values in, HTML out, everything of others escaped."""

import base64
import hashlib
from html import escape
from urllib.parse import urlsplit

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.access import App

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0;padding:2rem 1rem;display:flex;justify-content:center}
main{max-width:30rem;width:100%}
h1{font-size:1.4rem;line-height:1.25}
dl{border:1px solid #8888;border-radius:.5rem;padding:.75rem 1rem}
dt{font-size:.85rem;opacity:.75}
dd{margin:0 0 .5rem;font-weight:600;overflow-wrap:anywhere}
label{display:block;font-weight:600;margin:1rem 0 .25rem}
input{font:inherit;font-family:ui-monospace,monospace;width:100%;box-sizing:border-box;padding:.5rem}
button{font:inherit;padding:.5rem 1rem;margin:1rem .5rem 0 0}
.error{border-left:4px solid #c00;padding-left:.75rem}
"""

_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def policy(redirect: str = "") -> str:
    """Content-Security-Policy.  A browser counts where a form leads on to: the app's address is named."""
    parts = urlsplit(redirect)
    leads = f" {parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else ""
    return (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'{leads};"
        " frame-ancestors 'none'; base-uri 'none'"
    )


def consent(request: str, app: App, redirect: str, error: str = "") -> str:
    """The question, with a place for the owner's code."""
    parts = urlsplit(redirect)
    known = urlsplit(app.id).hostname if app.id.startswith("https://") else None
    who = f"{known} (its own document says so)" if known else "unknown: it registered by itself"
    note = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    return _page(
        "Let this app in?",
        f"""<h1>Let this app use your coding agents?</h1>
<p>It will run tools on your machines, within what your agents allow.</p>
<dl><dt>It calls itself</dt><dd>{escape(display(app.name, 80))}</dd>
<dt>Vouched for by</dt><dd>{escape(display(who, 300))}</dd>
<dt>The answer goes to</dt><dd>{escape(display(parts.netloc, 300))}</dd></dl>
<p>If you did not just begin this yourself, or do not know that address, deny.</p>
{note}<form method="post" action="consent" autocomplete="off">
<input type="hidden" name="request" value="{escape(request)}">
<label for="code">One-time code</label>
<input id="code" name="code" autofocus spellcheck="false" autocapitalize="characters" maxlength="64"
 aria-describedby="how">
<p id="how">Run <code>chappie-bridge code</code> on the machine of the bridge.</p>
<button name="decision" value="allow">Allow</button>
<button name="decision" value="deny" formnovalidate>Deny</button>
</form>""",
    )


def notice(title: str, text: str) -> str:
    """A page that says one thing."""
    return _page(title, f"<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>")


def _page(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - chappie-bridge</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>
<body><main>
{body}
</main></body></html>
"""
