"""The way in to the owner's pages: addresses, login, what a browser may do with them.  Shows nothing itself.

Everything but the login and two static files needs a login: a route that is added later does, too.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chappie_bridge.faces.chatgpt.kernel import logged
from chappie_bridge.faces.dashboard import AT, shown
from chappie_bridge.faces.dashboard.actions import Actions, Form
from chappie_bridge.faces.dashboard.live import Live
from chappie_bridge.faces.dashboard.logins import Login, Logins
from chappie_bridge.faces.dashboard.pages import OWNER, PAGES, Pages
from chappie_bridge.wire.errors import BridgeError, Overloaded
from chappie_bridge.wire.owner import RedeemCode
from chappie_bridge.wire.ports import Office, Switchboard

FORM_MAX = 128 * 1024
"""Bytes of a form: an answer of the longest kind, each character escaped."""

LOGIN = f"{AT}/login"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # `no-referrer` would take the origin from forms, which is checked
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_STREAMS = frozenset({f"{AT}/events", f"{AT}/transcript"})
_STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}
_STATUS = {"unknown_session": 404, "unknown_entry": 404, "path_missing": 404, "overloaded": 503}

Endpoint = Callable[[Request], Awaitable[Response]]


class Site:
    """An ASGI application under `/dashboard`.  `clock` gives seconds that only grow."""

    def __init__(
        self,
        switchboard: Switchboard,
        office: Office,
        *,
        public_url: str,
        clock: Callable[[], float],
    ) -> None:
        public = urlsplit(public_url)
        self._https = public.netloc.lower() if public.scheme == "https" else ""
        self._office = office
        self._logins = Logins(clock)
        files = {file: shown.static(file) for file in _STATIC}
        version = hashlib.sha256(b"".join(files.values())).hexdigest()[:16]
        self._pages = Pages(switchboard, office, version)
        self._actions = Actions(office)
        self._live = live = Live(office, self._pages)
        self._app: ASGIApp = Starlette(
            routes=[
                Route(LOGIN, self._login_page, methods=["GET"]),
                Route(LOGIN, self._log_in, methods=["POST"]),
                *(Route(f"{AT}/static/{file}", _file(files[file], kind)) for file, kind in _STATIC.items()),
                *(Route(at, self._told(self._pages.page(name))) for name, at in PAGES.items()),
                Route(f"{AT}/image", self._told(self._pages.image)),
                Route(f"{AT}/events", self._told(live.changes)),
                Route(f"{AT}/transcript", self._told(live.transcript)),
                Route(f"{AT}/logout", self._form(self._log_out), methods=["POST"]),
                *(
                    Route(f"{AT}/{name}", self._form(act), methods=["POST"])
                    for name, act in self._actions.table.items()
                ),
            ],
            exception_handlers={HTTPException: self._refused},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.setdefault("cache-control", "no-store")
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        connection = HTTPConnection(scope)
        response: ASGIApp = self._app
        if scope["method"] == "POST" and not _own_page(connection.headers):
            response = self._pages.failure(403, "This form was not sent by a page of this bridge.")
        elif scope["path"] != LOGIN and not scope["path"].startswith(f"{AT}/static/"):
            # What a page asks for by itself does not keep its login alive.
            by_itself = "x-live" in connection.headers or scope["path"] in _STREAMS
            cookie = connection.cookies.get(_cookie(scope), "")
            login = self._logins.find(cookie, renew=scope["method"] == "POST" or not by_itself)
            if login is None:
                response = RedirectResponse(LOGIN, 303)
            else:
                scope = {**scope, "login": login, "logged_in": lambda: self._is_in(cookie)}
        await response(scope, receive, headed)

    def close(self) -> None:
        """End what would go on by itself."""
        self._live.close()

    def _is_in(self, cookie: str) -> bool:
        return self._logins.find(cookie, renew=False) is not None

    async def _login_page(self, request: Request) -> Response:
        return self._pages.login()

    async def _log_in(self, request: Request) -> Response:
        """A code becomes a cookie."""
        form = await _read(request)
        by = request.client.host if request.client else ""
        try:
            code = form.first("code")[:200]
            await self._office.redeem_code(RedeemCode(caller=OWNER, purpose="login", code=code, by=by[:100]))
        except BridgeError as error:
            return self._pages.login(str(error), 429 if isinstance(error, Overloaded) else 403)
        self._logins.close(request.cookies.get(_cookie(request.scope), ""))
        response = RedirectResponse(AT, 303)
        response.set_cookie(
            _cookie(request.scope),
            self._logins.open(),
            path=AT,
            httponly=True,
            samesite="strict",
            secure=self._is_secure(request),
        )
        return response

    async def _log_out(self, request: Request, form: Form) -> Response:
        self._logins.close(request.cookies.get(_cookie(request.scope), ""))
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(
            _cookie(request.scope), path=AT, httponly=True, samesite="strict", secure=self._is_secure(request)
        )
        return response

    def _is_secure(self, request: Request) -> bool:
        """Is it https, as far as the browser is concerned?  A proxy before us may speak http to us."""
        return request.url.scheme == "https" or request.headers.get("host", "").lower() == self._https

    def _form(self, act: Callable[[Request, Form], Awaitable[Response]]) -> Endpoint:
        """Only with the token of this login: a page of another origin cannot know it."""

        async def endpoint(request: Request) -> Response:
            form = await _read(request)
            login: Login = request.scope["login"]
            if not form.carries(login.token):
                return self._pages.failure(403, "This form is of an earlier login. Load the page again.")
            return await act(request, form)

        return self._told(endpoint)

    def _told(self, endpoint: Endpoint) -> Endpoint:
        """What goes wrong becomes a page that says so; a bug is in the log, not on the page."""

        async def guarded(request: Request) -> Response:
            try:
                return await endpoint(request)
            except BridgeError as error:
                hint = f" {error.hint}" if error.hint else ""
                return self._pages.failure(_STATUS.get(error.code, 400), f"{error}{hint}")
            except (HTTPException, ClientDisconnect):
                raise
            except Exception as error:
                text = f"The bridge failed; its log has the details under {logged(error)}."
                return self._pages.failure(500, text)

        return guarded

    async def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        response = self._pages.failure(error.status_code, error.detail)
        response.headers.update(error.headers or {})
        return response


async def _read(request: Request) -> Form:
    """:raises HTTPException: it is no form, or larger than a form can be."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "Only a form is read here.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_MAX:
            raise HTTPException(413, "The form is too large.", {"connection": "close"})
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="replace")
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    return Form(fields)


def _own_page(headers: Mapping[str, str]) -> bool:
    """Was it sent by a page of this very server?  Another port of the same host is another program's."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower().partition("://")[2] == headers.get("host", "").lower()


def _cookie(scope: Scope) -> str:
    """With the port: browsers send the cookies of a host to all of its ports."""
    server = scope.get("server")
    return f"chappie-{server[1] if server else 0}"


def _file(content: bytes, kind: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        # Pages name it with a hash of its bytes.
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(content, media_type=kind, headers=headers)

    return endpoint
