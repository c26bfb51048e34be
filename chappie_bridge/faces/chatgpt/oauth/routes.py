"""The OAuth endpoints as an ASGI application behind the gate: bounds what comes in, calls the SDK's handlers,
asks the owner.  Host and Origin were looked at before."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import construct_redirect_uri
from mcp.server.auth.settings import ClientRegistrationOptions
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from chappie_bridge.faces.chatgpt.kernel import decode, logged
from chappie_bridge.wire.access import Held
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import AppId
from chappie_bridge.wire.owner import RedeemCode
from chappie_bridge.wire.ports import Consents, Office
from chappie_bridge.wire.values import Caller

from . import metadata, page
from .provider import Asking, Provider, Waiting

BODY_MAX = 32 * 1024
"""Bytes of a form or a registration, and of a query."""

BODY_SECONDS = 10.0

_OWNER = Caller(principal="owner", source="none")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_Answer = Callable[[Request, str], Awaitable[Response]]


class Door:
    """`base(headers)` is our address as this client reaches it, empty where OAuth is not offered; `path` that
    of `public_url`."""

    def __init__(
        self, consents: Consents, office: Office, base: Callable[[Mapping[str, str]], str], path: str = ""
    ) -> None:
        self._consents, self._office, self.base = consents, office, base
        self._provider = Provider(consents)
        self._waiting = Waiting(consents)
        self._token = TokenHandler(self._provider, ClientAuthenticator(self._provider))
        self._register = RegistrationHandler(self._provider, ClientRegistrationOptions(enabled=True))
        server, resource = metadata.SERVER_PATH, metadata.RESOURCE_PATH
        self.routes: Mapping[str, tuple[str, _Answer]] = {
            **dict.fromkeys((resource, f"{resource}/mcp"), ("GET", self._resource_metadata)),
            f"{resource}{path}/mcp": ("GET", self._resource_metadata),
            **dict.fromkeys((server, metadata.OPENID_PATH), ("GET", self._server_metadata)),
            f"{server}{path}": ("GET", self._server_metadata),
            f"{metadata.OPENID_PATH}{path}": ("GET", self._server_metadata),
            metadata.AUTHORIZE: ("GET", self._authorize),
            metadata.TOKEN: ("POST", self._tokens),
            metadata.REGISTER: ("POST", self._registration),
            metadata.REVOKE: ("POST", self._revoke),
            metadata.CONSENT: ("GET, POST", self._consent),
        }
        """Path -> methods and what answers."""
        self.readable = frozenset(self.routes) - {metadata.AUTHORIZE, metadata.CONSENT}
        """Where a page of an allowed origin may read the answer."""

    def held(self, headers: Mapping[str, str]) -> Held | None:
        """Who sends the access token of these headers, when it is good for the address that was asked."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        base = self.base(headers)
        if scheme.lower() != "bearer" or not base:
            return None
        return self._consents.bearer(token.strip(), metadata.resource(base))

    def withdrawn(self, held: Held, headers: Mapping[str, str]) -> str:
        """The challenge for who came in by a consent that has ended since; empty while it stands.  A token
        that only grew old was good when the request came."""
        if self._consents.stands(held.grant):
            return ""
        return metadata.challenge(self.base(headers), "invalid_token", "The owner's consent has ended.")

    async def answer(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """For a path of `routes`."""
        methods, answer = self.routes[scope["path"]]
        base = self.base(headers)
        response: Response
        if not base:
            response = _failed(404, "invalid_request", "OAuth needs `public_url`, or this very machine.")
        elif scope["method"] not in methods.split(", "):
            response = _failed(405, "invalid_request", f"Only {methods} is answered here.")
            response.headers["Allow"] = methods
        else:
            response = await self._bounded(scope, receive, answer, base)
        response.headers.update(_HEADERS)
        await response(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, answer: _Answer, base: str) -> Response:
        body: bytes | None = None
        with anyio.move_on_after(BODY_SECONDS):
            body = await _body(receive)
            if body is None:
                return _failed(413, "invalid_request", f"At most {BODY_MAX} bytes are taken here.")
        if body is None:
            return _failed(408, "invalid_request", "The request did not end in time.")
        if len(scope["query_string"]) > BODY_MAX:
            return _failed(414, "invalid_request", f"At most {BODY_MAX} bytes are taken here.")

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            request = Request(scope, again)
            fault = await _fault(request)
            return fault or await answer(request, base)
        except Exception as error:
            return _failed(500, "server_error", f"The bridge failed; its log says more: {logged(error)}.")

    async def _resource_metadata(self, request: Request, base: str) -> Response:
        return JSONResponse(metadata.protected_resource(base))

    async def _server_metadata(self, request: Request, base: str) -> Response:
        return JSONResponse(metadata.authorization_server(base))

    async def _registration(self, request: Request, base: str) -> Response:
        try:
            given: Any = decode(await request.body())
            uris = given["redirect_uris"]
            fit = all(isinstance(each, str) and metadata.is_redirect(each) for each in uris)
        except (ValueError, KeyError, TypeError):
            return _failed(400, "invalid_client_metadata", "This is not a client's metadata.")
        if not fit:  # looked at as they are written: the SDK's types would mend them
            text = "Redirects go to https addresses, or to http on this very machine."
            return _failed(400, "invalid_redirect_uri", text)
        return await self._register.handle(request)

    async def _tokens(self, request: Request, base: str) -> Response:
        form = await request.form()
        if form.get("resource", metadata.resource(base)) != metadata.resource(base):
            return _failed(400, "invalid_target", "This server gives tokens for its own /mcp only.")
        return await self._token.handle(request)  # type: ignore[no-any-return] # the SDK says Any

    async def _revoke(self, request: Request, base: str) -> Response:
        form = await request.form()
        token, app = form.get("token"), form.get("client_id")
        if not isinstance(token, str) or not isinstance(app, str):
            return _failed(400, "invalid_request", "`token` and `client_id` are needed.")
        await self._consents.revoke(token, AppId(app))
        return Response()

    async def _authorize(self, request: Request, base: str) -> Response:
        asking = Asking(self._provider, self._waiting, base, metadata.resource(base))
        client = await asking.get_client(request.query_params.get("client_id", ""))
        redirect = request.query_params.get("redirect_uri")
        known = [str(each) for each in client.redirect_uris or ()] if client is not None else []
        if client is None:
            return _page(400, page.notice("Unknown app", "This app is not registered here. Add it anew."))
        if redirect is not None and redirect not in known:  # as it is written: none that means the same
            text = "It wants its answer at an address that it did not register. Nothing was sent there."
            return _page(400, page.notice("This app was refused", text))
        response = await AuthorizationHandler(asking).handle(request)
        location = response.headers.get("location", "")
        if response.status_code != 302:
            text = json.loads(bytes(response.body)).get("error_description") or "The request is not valid."
            return _page(400, page.notice("This app was refused", text))
        if not location.startswith("consent?"):
            response.headers["location"] = f"{location}&iss={quote(base, safe='')}"
        return response

    async def _consent(self, request: Request, base: str) -> Response:
        given = await request.form() if request.method == "POST" else request.query_params
        name = given.get("request")
        pending = self._waiting.get(name) if isinstance(name, str) else None
        if pending is None or pending.base != base or not isinstance(name, str):
            text = "It was decided already, or waited longer than ten minutes. Begin anew in the app."
            return _page(400, page.notice("This question is gone", text))
        redirect, state = str(pending.params.redirect_uri), pending.params.state
        if request.method != "POST":
            return _page(200, page.consent(name, pending.app, redirect), redirect)
        if given.get("decision") == "deny":
            self._waiting.take(name)
            to = construct_redirect_uri(redirect, error="access_denied", state=state, iss=base)
            return RedirectResponse(to, 303)
        code = given.get("code")
        try:
            await self._office.redeem_code(
                RedeemCode(
                    caller=_OWNER,
                    purpose="consent",
                    code=code[:200] if isinstance(code, str) else "",
                    by=f"consent {name}",
                )
            )
            if self._waiting.take(name) is None:
                return _page(400, page.notice("This question is gone", "It was decided already."))
            await self._consents.register(pending.app)  # a document's app is known from here on
        except BridgeError as error:
            return _page(400, page.consent(name, pending.app, redirect, str(error)), redirect)
        accepted = self._provider.accepted(pending)
        return RedirectResponse(construct_redirect_uri(redirect, code=accepted, state=state, iss=base), 303)


async def _body(receive: Receive) -> bytes | None:
    """All of it; None: too much."""
    found = bytearray()
    while True:
        message = await receive()
        found += message.get("body", b"")
        if len(found) > BODY_MAX:
            return None
        if not message.get("more_body", False):
            return bytes(found)


async def _fault(request: Request) -> Response | None:
    """A parameter that comes twice could be read in two ways; a form comes as a form."""
    items: list[tuple[str, Any]] = request.query_params.multi_items()
    if request.method == "POST" and urlsplit(str(request.url)).path != metadata.REGISTER:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return _failed(415, "invalid_request", "Send `Content-Type: application/x-www-form-urlencoded`.")
        try:
            items = [*items, *(await request.form()).multi_items()]
        except MultiPartException:
            return _failed(400, "invalid_request", "This is not a form of ours.")
    elif request.method == "POST":
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return _failed(415, "invalid_client_metadata", "Send `Content-Type: application/json`.")
    names = [name for name, _ in items]
    if len(set(names)) != len(names):
        return _failed(400, "invalid_request", "A parameter comes more than once.")
    return None


def _failed(status: int, error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, status)


def _page(status: int, text: str, redirect: str = "") -> Response:
    headers = {
        "Content-Security-Policy": page.policy(redirect),
        "Referrer-Policy": "same-origin",  # with less, a browser calls the form's own origin `null`
        "X-Frame-Options": "DENY",
    }
    return HTMLResponse(text, status, headers)
