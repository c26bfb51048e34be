"""What OAuth clients read first: where everything is, and what is spoken there.  Pure."""

import re
from typing import Any
from urllib.parse import urlsplit

SCOPE = "bridge"
"""The only one: whoever is let in may use every tool."""

RESOURCE_PATH = "/.well-known/oauth-protected-resource"
SERVER_PATH = "/.well-known/oauth-authorization-server"
OPENID_PATH = "/.well-known/openid-configuration"
"""ChatGPT reads the authorization server's metadata here, too."""

AUTHORIZE, TOKEN, REGISTER, REVOKE, CONSENT = "/authorize", "/token", "/register", "/revoke", "/consent"

MAX_REDIRECT = 2000
"""Characters of an address that gets an answer."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def protected_resource(base: str) -> dict[str, Any]:
    """RFC 9728.  `base` is our address without `/mcp`, and the issuer's name."""
    return {
        "resource": resource(base),
        "authorization_servers": [base],
        "scopes_supported": [SCOPE],
        "bearer_methods_supported": ["header"],
        "resource_name": "chappie-bridge",
    }


def authorization_server(base: str) -> dict[str, Any]:
    """RFC 8414.  Clients are public: what proves a client is its redirect address and PKCE."""
    return {
        "issuer": base,
        "authorization_endpoint": base + AUTHORIZE,
        "token_endpoint": base + TOKEN,
        "registration_endpoint": base + REGISTER,
        "revocation_endpoint": base + REVOKE,
        "scopes_supported": [SCOPE],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "client_id_metadata_document_supported": True,
        "authorization_response_iss_parameter_supported": True,
    }


def resource(base: str) -> str:
    """The audience of our tokens."""
    return base + "/mcp"


def challenge(base: str, error: str = "", description: str = "") -> str:
    """`WWW-Authenticate` for a client that has no credential, or one that is not good."""
    parts = [f'Bearer resource_metadata="{base}{RESOURCE_PATH}/mcp"', f'scope="{SCOPE}"']
    if error:
        parts += [f'error="{error}"', f'error_description="{description}"']
    return ", ".join(parts)


def is_redirect(text: str) -> bool:
    """May an answer go there?  To a page over https, or to a program of the same machine."""
    if (
        not 0 < len(text) <= MAX_REDIRECT
        or not re.fullmatch(r"[!-~]+", text)
        or re.search(r'[\\<>"`{}|^]', text)
    ):
        return False
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.password is not None or "#" in text:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)


def is_document(text: str) -> bool:
    """Can a client's id be the address of its metadata document?  https, a path, nothing that misleads."""
    if not is_redirect(text) or not text.startswith("https://"):
        return False
    path = urlsplit(text).path
    return len(path) > 1 and not {".", ".."} & set(path.split("/"))
