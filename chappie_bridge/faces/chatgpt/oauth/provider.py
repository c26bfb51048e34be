"""The SDK's provider on `ports.Consents`: clients, codes, tokens.  Asks no person and writes no page."""

import hashlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    RegistrationError,
    TokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl, ValidationError

from chappie_bridge.codec.unicode import display
from chappie_bridge.faces.chatgpt.kernel import decode
from chappie_bridge.wire.access import App, Tokens
from chappie_bridge.wire.errors import BridgeError, Overloaded
from chappie_bridge.wire.ids import AppId, GrantId
from chappie_bridge.wire.ports import Consents

from .metadata import SCOPE, is_document, is_redirect

PENDING_SECONDS = 600.0
"""How long a page waits for the owner's decision."""

CODE_SECONDS = 60.0
"""How long the code that a client gets is good."""

MAX_PENDING = 1000
"""Of pages, of codes and of used codes each; the oldest goes first."""

MAX_REDIRECTS = 10
MAX_NAME = 80

PUBLIC = "none"
"""How a client proves itself at the token endpoint: by its redirect address and PKCE alone."""

FRESH, STALE = 3600.0, 60.0
"""Seconds for which a client's document is believed, and for which a failure to get it is."""

MAX_DOCUMENTS = 64

READERS = 8
"""Documents that are read at once: who asks for one more is refused, not kept waiting."""


class Pending(NamedTuple):
    """A client that waits for the owner.  `base` is the address under which it came."""

    app: App
    params: AuthorizationParams
    base: str
    until: float


@dataclass
class _Used:
    """A code that was exchanged: for which consent, once that is known, and whether it came again."""

    grant: GrantId | None = None
    again: bool = False


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """For clients that registered, or whose document was read when they asked for consent."""

    def __init__(self, consents: Consents) -> None:
        self.consents = consents
        self._codes: OrderedDict[str, AuthorizationCode] = OrderedDict()
        self._used: OrderedDict[str, _Used] = OrderedDict()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        app = self.consents.app(AppId(client_id))
        return None if app is None else _client(app)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """What the client asked for is replaced where we offer less: it reads that in the answer."""
        client_info.client_secret = client_info.client_secret_expires_at = None
        client_info.token_endpoint_auth_method = PUBLIC
        client_info.grant_types = ["authorization_code", "refresh_token"]
        client_info.scope = SCOPE
        try:
            await self.consents.register(_app(client_info))
        except Overloaded as error:
            raise RegistrationError("invalid_client_metadata", str(error)) from None

    def accepted(self, pending: Pending) -> str:
        """The owner let it in: the code for the client."""
        code = secrets.token_urlsafe(32)
        params = pending.params
        self._codes[_digest(code)] = AuthorizationCode(
            code=code,
            scopes=[SCOPE],
            expires_at=time.time() + CODE_SECONDS,
            client_id=pending.app.id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        _bound(self._codes)
        return code

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        """A code that comes again ends the consent that it was exchanged for."""
        digest = _digest(authorization_code)
        used = self._used.get(digest)
        if used is not None:
            used.again = True
            if used.grant is not None:
                await self.consents.withdraw(used.grant, "an authorization code came again: consent ended")
        return self._codes.get(digest)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        digest = _digest(authorization_code.code)
        app = self.consents.app(AppId(client.client_id))
        if self._codes.pop(digest, None) is None or app is None or authorization_code.resource is None:
            raise TokenError("invalid_grant", "authorization code does not exist")
        self._used[digest] = used = _Used()
        _bound(self._used)
        tokens = await self.consents.consented(app, authorization_code.resource)
        used.grant = tokens.grant
        if used.again:
            await self.consents.withdraw(tokens.grant, "an authorization code came again: consent ended")
            raise TokenError("invalid_grant", "authorization code does not exist")
        return _told(tokens)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        held = await self.consents.refreshable(refresh_token)
        if held is None or held.app != client.client_id:
            return None
        return RefreshToken(token=refresh_token, client_id=held.app, scopes=[SCOPE])

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        try:
            return _told(await self.consents.rotated(refresh_token.token))
        except BridgeError as error:
            raise TokenError("invalid_grant", str(error)) from None

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Never asked: the gate itself looks at access tokens, with the address that they are for."""
        raise NotImplementedError

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """Never asked: the SDK's endpoint wants a secret of every client."""
        raise NotImplementedError

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        raise NotImplementedError


class Asking(Provider):
    """The same for `/authorize` under one address: reads clients' documents, and keeps who waits."""

    def __init__(self, provider: Provider, waiting: "Waiting", base: str, resource: str) -> None:
        super().__init__(provider.consents)
        self._waiting, self._base, self._resource = waiting, base, resource

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if is_document(client_id):
            app = await self._waiting.documents.app(client_id)
            return None if app is None else _client(app)
        return await super().get_client(client_id)

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if params.resource is None:
            params = params.model_copy(update={"resource": self._resource})
        if params.resource != self._resource:
            raise AuthorizeError("invalid_target", "This server gives tokens for its own /mcp only.")
        if not 43 <= len(params.code_challenge) <= 128:
            raise AuthorizeError("invalid_request", "The code_challenge is not one of S256.")
        return "consent?request=" + self._waiting.add(_app(client), params, self._base)


class Documents:
    """Clients whose id is the address of their metadata document."""

    def __init__(self, consents: Consents) -> None:
        self._consents = consents
        self._known: OrderedDict[str, tuple[float, App | None]] = OrderedDict()
        self._reading = 0

    async def app(self, url: str) -> App | None:
        """None: there is no such document, it does not fit its address, or too many are asked for now."""
        until, app = self._known.get(url, (0.0, None))
        if time.monotonic() < until:
            return app
        if self._reading >= READERS:
            return None
        self._reading += 1
        try:
            app = _from_document(url, await self._consents.document(url))
        except (BridgeError, ValueError):
            app = None
        finally:
            self._reading -= 1
        self._known[url] = (time.monotonic() + (STALE if app is None else FRESH), app)
        while len(self._known) > MAX_DOCUMENTS:
            self._known.popitem(last=False)
        return app


class Waiting:
    """Clients that wait for the owner, by an unguessable name that works once."""

    def __init__(self, consents: Consents) -> None:
        self.documents = Documents(consents)
        self._pending: OrderedDict[str, Pending] = OrderedDict()

    def add(self, app: App, params: AuthorizationParams, base: str) -> str:
        name = secrets.token_urlsafe(32)
        self._pending[name] = Pending(app, params, base, time.monotonic() + PENDING_SECONDS)
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        return name

    def get(self, name: str) -> Pending | None:
        found = self._pending.get(name)
        return found if found is not None and time.monotonic() < found.until else None

    def take(self, name: str) -> Pending | None:
        """The same, for the last time."""
        found = self.get(name)
        self._pending.pop(name, None)
        return found


def _from_document(url: str, body: bytes) -> App:
    """:raises ValueError: it is not this client's document, or not for us."""
    document = decode(body)
    if not isinstance(document, dict) or document.get("client_id") != url:
        raise ValueError("the document names another client")
    uris, name = document.get("redirect_uris"), document.get("client_name")
    if not isinstance(uris, list) or not 0 < len(uris) <= MAX_REDIRECTS:
        raise ValueError("no redirect_uris")
    if not all(isinstance(each, str) and is_redirect(each) for each in uris):
        raise ValueError("an answer may not go there")
    return App(AppId(url), name if isinstance(name, str) else urlsplit(url).hostname or "", tuple(uris))


def _app(client: OAuthClientInformationFull) -> App:
    """:raises RegistrationError: an answer may not go where this client wants it."""
    uris = tuple(str(each) for each in client.redirect_uris or ())
    if not 0 < len(uris) <= MAX_REDIRECTS or not all(map(is_redirect, uris)):
        raise RegistrationError(
            "invalid_redirect_uri", "Redirects go to https addresses, or to http on this very machine."
        )
    return App(AppId(client.client_id), display(client.client_name or "(no name)", MAX_NAME), uris)


def _client(app: App) -> OAuthClientInformationFull | None:
    try:
        return OAuthClientInformationFull(
            client_id=app.id,
            client_name=app.name,
            redirect_uris=[AnyUrl(each) for each in app.redirects],
            token_endpoint_auth_method=PUBLIC,
            grant_types=["authorization_code", "refresh_token"],
            scope=SCOPE,
        )
    except ValidationError:
        return None


def _told(tokens: Tokens) -> OAuthToken:
    return OAuthToken(
        access_token=tokens.access,
        expires_in=tokens.seconds,
        scope=SCOPE,
        refresh_token=tokens.refresh,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _bound(kept: OrderedDict[str, AuthorizationCode] | OrderedDict[str, _Used]) -> None:
    while len(kept) > MAX_PENDING:
        kept.popitem(last=False)
