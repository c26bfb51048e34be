"""OAuth beside the secret: real registry, real endpoints, a client that does as the standards say, or not."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from chappie_broker import apps as apps_module
from chappie_broker.apps import ACCESS_SECONDS, REFRESH_SECONDS

from chappie_bridge.faces.chatgpt.oauth.metadata import is_document, is_redirect
from chappie_bridge.faces.chatgpt.oauth.provider import READERS
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.errors import DownloadFailed
from chappie_bridge.wire.ids import AppId
from chappie_bridge.wire.requests import Bytes, OperationView
from tests.faces.chatgpt.oauth_rig import (
    BACK,
    CHALLENGE,
    CIMD,
    PUBLIC,
    VERIFIER,
    Rig,
    every_route,
    opened,
    registered,
    told,
)
from tests.faces.chatgpt.scripted import NOOP, SECRET, Scripted, error, request, settings, view
from tests.peer.switchboard import ScriptedSwitchboard

pytestmark = pytest.mark.anyio

FILE = "chappie://session/s_one/file/u-1/a.zip?chatId=c"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(tmp_path / "r.db") as rig:
        yield rig


# --- the way that works -------------------------------------------------------------------------


async def test_an_app_registers_is_let_in_and_uses_the_tools(rig: Rig) -> None:
    refused = await rig.http.post("/mcp", json=request("sessions", {}))
    assert refused.status_code == 401
    challenge = refused.headers["www-authenticate"]
    assert challenge.startswith(
        f'Bearer resource_metadata="{PUBLIC}/.well-known/oauth-protected-resource/mcp"'
    )
    client = await registered(rig)
    answer = await rig.consented(client)
    assert (answer["state"], answer["iss"]) == ("a state", PUBLIC)
    tokens = (await rig.exchange(client, answer["code"])).json()
    assert (tokens["token_type"], tokens["expires_in"]) == ("Bearer", ACCESS_SECONDS)
    assert (await rig.use(tokens["access_token"])).status_code == 200
    (asked,) = rig.board.asked
    assert asked.caller.principal.startswith("app:")
    assert asked.caller.credential


async def test_the_install_secret_goes_on_working(rig: Rig) -> None:
    assert (await rig.use(SECRET)).status_code == 200
    assert rig.board.asked[0].caller.principal == "owner"


async def test_an_apps_document_is_its_registration(rig: Rig) -> None:
    rig.documents[CIMD] = json.dumps(
        {"client_id": CIMD, "client_name": "ChatGPT", "redirect_uris": [BACK]}
    ).encode()
    tokens = await rig.tokens(CIMD)
    assert (await rig.use(tokens["access_token"])).status_code == 200
    assert (await rig.refresh(CIMD, tokens["refresh_token"])).status_code == 200
    assert rig.fetched == [CIMD]  # kept for a while; the token endpoint never fetches


async def test_both_well_known_addresses_answer_json(rig: Rig) -> None:
    for path in ("", "/mcp"):
        found = (await rig.http.get(f"/.well-known/oauth-protected-resource{path}")).json()
        assert (found["resource"], found["authorization_servers"]) == (f"{PUBLIC}/mcp", [PUBLIC])
    for path in ("oauth-authorization-server", "openid-configuration"):
        found = (await rig.http.get(f"/.well-known/{path}")).json()
        assert found["issuer"] == PUBLIC
        assert found["code_challenge_methods_supported"] == ["S256"]
        assert found["client_id_metadata_document_supported"] is True
        assert found["authorization_response_iss_parameter_supported"] is True
        for endpoint in ("authorization", "token", "registration", "revocation"):
            assert found[f"{endpoint}_endpoint"].startswith(PUBLIC + "/")


async def test_registrations_outlive_their_tokens_and_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as rig:
        client = await registered(rig)
        tokens = await rig.tokens(client)
    async with opened(tmp_path / "r.db") as rig:
        assert (await rig.use(tokens["access_token"])).status_code == 200
        rig.now += REFRESH_SECONDS + 1
        assert (await rig.use(tokens["access_token"])).status_code == 401
        assert (await rig.refresh(client, tokens["refresh_token"])).json()["error"] == "invalid_grant"
        assert "access_token" in await rig.tokens(client)


async def test_one_app_is_one_principal_whatever_its_consent(rig: Rig) -> None:
    """S08: conversations of two credentials are apart; a new consent finds the old ones again."""
    one, other = await registered(rig), await registered(rig)
    for client in (one, one, other):
        await rig.use((await rig.tokens(client))["access_token"])
    first, again, second = [asked.caller for asked in rig.board.asked]
    assert first.principal == again.principal != second.principal
    assert first.credential != again.credential


async def test_tools_say_how_who_sees_them_came_in(rig: Rig) -> None:
    tokens = await rig.tokens(await registered(rig))
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for token, schemes in (
        (tokens["access_token"], [{"type": "oauth2", "scopes": ["bridge"]}]),
        (SECRET, [{"type": "noauth"}]),
    ):
        answer = await rig.http.post("/mcp", json=listing, headers={"Authorization": f"Bearer {token}"})
        for tool in answer.json()["result"]["tools"]:
            assert tool["securitySchemes"] == tool["_meta"]["securitySchemes"] == schemes


# --- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", ["https://other.example", "http://127.0.0.1:24273"])
async def test_a_token_for_another_address_is_refused(rig: Rig, elsewhere: str) -> None:
    """S23: the audience is checked where the token is used."""
    tokens = await rig.tokens(await registered(rig))
    async with rig.client(elsewhere) as http:
        refused = await rig.use(tokens["access_token"], http)
    assert refused.status_code == 401
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]
    assert rig.board.asked == []


async def test_a_token_is_asked_for_this_server_only(rig: Rig) -> None:
    """S23: and where it is issued, at both ends of the way."""
    client = await registered(rig)
    refused = await rig.authorize(client, resource="https://other.example/mcp")
    assert told(refused)["error"] == "invalid_target"
    code = (await rig.consented(client))["code"]
    refused = await rig.exchange(client, code, resource="https://other.example/mcp")
    assert refused.json()["error"] == "invalid_target"


async def test_a_foreign_issuers_token_is_refused_and_goes_nowhere(rig: Rig) -> None:
    """S23"""
    for token in ("eyJhbGciOiJub25lIn0.e30.", "chp_a_00_x", "chp_a_" + "0" * 32 + "_x", "", "a" * 5000):
        assert (await rig.use(token)).status_code == 401
    assert rig.board.asked == []


async def test_a_refresh_token_or_a_made_up_one_is_no_access_token(rig: Rig) -> None:
    """S23: that a consent has an id is no secret; what follows it is."""
    tokens = await rig.tokens(await registered(rig))
    access, refresh = tokens["access_token"], tokens["refresh_token"]
    for token in (
        refresh,
        refresh.replace("_r_", "_a_"),
        access[:-1] + "-",
        access + "x",
        access[:-43] + "x" * 43,
    ):
        assert (await rig.use(token)).status_code == 401
    assert (await rig.use(access)).status_code == 200


async def test_a_token_of_ours_reaches_no_device(rig: Rig) -> None:
    """S23: what the broker is told names the consent, never the token."""
    tokens = await rig.tokens(await registered(rig))
    await rig.use(tokens["access_token"])
    assert tokens["access_token"].rsplit("_", 1)[1] not in rig.board.asked[0].model_dump_json()


async def test_a_replayed_code_is_refused_and_ends_what_it_gave(rig: Rig) -> None:
    """S24"""
    client = await registered(rig)
    code = (await rig.consented(client))["code"]
    tokens = (await rig.exchange(client, code)).json()
    assert (await rig.exchange(client, code)).json()["error"] == "invalid_grant"
    assert (await rig.use(tokens["access_token"])).status_code == 401


async def test_a_replayed_refresh_token_ends_the_whole_family(rig: Rig) -> None:
    """S24"""
    client = await registered(rig)
    first = await rig.tokens(client)
    second = (await rig.refresh(client, first["refresh_token"])).json()
    for access in (first["access_token"], second["access_token"]):  # requests on their way go on
        assert (await rig.use(access)).status_code == 200
    assert (await rig.refresh(client, first["refresh_token"])).json()["error"] == "invalid_grant"
    assert (await rig.use(second["access_token"])).status_code == 401
    assert (await rig.refresh(client, second["refresh_token"])).json()["error"] == "invalid_grant"


async def test_another_apps_refresh_token_is_refused(rig: Rig) -> None:
    mine, other = await registered(rig), await registered(rig)
    tokens = await rig.tokens(mine)
    assert (await rig.refresh(other, tokens["refresh_token"])).json()["error"] == "invalid_grant"
    assert (await rig.refresh(mine, tokens["refresh_token"])).status_code == 200


async def test_an_access_token_is_short(rig: Rig) -> None:
    tokens = await rig.tokens(await registered(rig))
    rig.now += ACCESS_SECONDS - 1
    assert (await rig.use(tokens["access_token"])).status_code == 200
    rig.now += 2
    assert (await rig.use(tokens["access_token"])).status_code == 401


@pytest.mark.parametrize("which", ["access_token", "refresh_token"])
async def test_a_token_that_is_given_back_ends_the_consent(rig: Rig, which: str) -> None:
    client, other = await registered(rig), await registered(rig)
    tokens = await rig.tokens(client)
    for who, left in ((other, 200), (client, 401)):
        answer = await rig.http.post("/revoke", data={"token": tokens[which], "client_id": who})
        assert answer.status_code == 200
        assert (await rig.use(tokens["access_token"])).status_code == left


async def test_an_app_whose_consent_ends_during_a_call_learns_no_more(rig: Rig) -> None:
    """S23: it is told in the way that ChatGPT needs before it offers to connect anew."""
    client = await registered(rig)
    access = (await rig.tokens(client))["access_token"]

    async def revoked(_: Any) -> OperationView:
        await rig.apps.revoke_app(AppId(client))
        return view()

    rig.board.on["call"] = revoked
    headers = {"Authorization": f"Bearer {access}"}
    answer = await rig.http.post("/mcp", json=request("call", NOOP), headers=headers)
    result = answer.json()["result"]
    shown = error(result)
    assert (shown["code"], shown["executed"]) == ("forbidden", "unknown")
    (challenge,) = result["_meta"]["mcp/www_authenticate"]
    assert challenge.startswith(
        f'Bearer resource_metadata="{PUBLIC}/.well-known/oauth-protected-resource/mcp"'
    )
    assert 'error="invalid_token"' in challenge
    assert "error_description=" in challenge
    assert True not in rig.board.receipts["r_1"]  # what it did not learn is offered again
    refused = await rig.http.post("/mcp", json=request("call", NOOP), headers=headers)
    assert (refused.status_code, "invalid_token" in refused.headers["www-authenticate"]) == (401, True)


async def test_an_app_whose_consent_ends_during_a_read_gets_no_bytes(rig: Rig) -> None:
    """S23"""
    client = await registered(rig)
    access = (await rig.tokens(client))["access_token"]

    async def revoked(_: Any) -> Bytes:
        await rig.apps.revoke_app(AppId(client))
        return Bytes(data="QUJD", size=3)

    rig.board.on["fetch"] = revoked
    reading = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": FILE}}
    headers = {"Authorization": f"Bearer {access}"}
    answer = await rig.http.post("/mcp", json=reading, headers=headers)
    assert answer.json()["error"]["data"]["code"] == "forbidden"
    assert "QUJD" not in answer.text


async def test_a_token_that_grows_old_during_a_call_was_good_when_it_came(rig: Rig) -> None:
    access = (await rig.tokens(await registered(rig)))["access_token"]

    async def slow(_: Any) -> OperationView:
        rig.now += ACCESS_SECONDS + 1
        return view()

    rig.board.on["call"] = slow
    headers = {"Authorization": f"Bearer {access}"}
    answer = await rig.http.post("/mcp", json=request("call", NOOP), headers=headers)
    assert (answer.json()["result"]["isError"], "_meta" in answer.json()["result"]) == (False, False)


async def test_the_registry_holds_no_token(rig: Rig, tmp_path: Path) -> None:
    """S21"""
    tokens = await rig.tokens(await registered(rig))
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for token in (tokens["access_token"], tokens["refresh_token"]):
        assert token.rsplit("_", 1)[1].encode() not in stored


# --- the request and the consent ----------------------------------------------------------------


@pytest.mark.parametrize(
    "altered",
    [
        *(BACK + "/", BACK + "?x=1", BACK + "#x", BACK.replace("https", "http"), BACK + "/../x"),
        *("https://chatgpt.com.evil.test/", "https://chatgpt.com@evil.test/", "javascript:alert(1)", ""),
        *("HTTPS://CHATGPT.COM/connector_platform_oauth_redirect", BACK.replace(".com", ".com:443")),
    ],
)
async def test_an_altered_redirect_is_refused_and_not_followed(rig: Rig, altered: str) -> None:
    """S24: exact match; there is no open redirect."""
    refused = await rig.authorize(await registered(rig), redirect_uri=altered)
    assert refused.status_code == 400
    assert "location" not in refused.headers


async def test_another_redirect_at_the_token_endpoint_is_refused(rig: Rig) -> None:
    """S24"""
    client = await registered(rig)
    code = (await rig.consented(client))["code"]
    refused = await rig.exchange(client, code, redirect_uri="https://chatgpt.com/other")
    assert refused.status_code == 400


@pytest.mark.parametrize(
    "missing",
    [
        {"code_challenge": None},
        {"code_challenge_method": "plain"},
        {"code_challenge_method": "plain", "code_challenge": VERIFIER},
        {"code_challenge": "short"},
    ],
)
async def test_missing_and_plain_pkce_are_refused(rig: Rig, missing: dict[str, Any]) -> None:
    """S24"""
    refused = told(await rig.authorize(await registered(rig), **missing))
    assert refused["error"] == "invalid_request"
    assert (refused["state"], refused["iss"]) == ("a state", PUBLIC)


@pytest.mark.parametrize("verifier", [None, "w" * 64, CHALLENGE])
async def test_a_code_without_its_verifier_is_worth_nothing(rig: Rig, verifier: str | None) -> None:
    """S24"""
    client = await registered(rig)
    code = (await rig.consented(client))["code"]
    assert (await rig.exchange(client, code, code_verifier=verifier)).status_code == 400


async def test_nobody_is_let_in_without_the_owners_code(rig: Rig) -> None:
    """S24: each code works once and for one request; a code of another purpose is none."""
    client = await registered(rig)
    used = rig.codes.make("consent")
    await rig.decide(await rig.authorize(client), code=used)
    for code in ("", "0000-0000-0000-0000", used, rig.codes.make("login")):
        refused = await rig.decide(await rig.authorize(client), code=code)
        assert refused.status_code == 400
        assert "location" not in refused.headers


async def test_wrong_codes_are_counted(rig: Rig) -> None:
    asked = await rig.authorize(await registered(rig))
    for _ in range(10):
        await rig.decide(asked, code="WRONG")
    late = await rig.decide(asked, code=rig.codes.make("consent"))
    assert "Too many wrong codes" in late.text


async def test_a_decision_is_made_once(rig: Rig) -> None:
    """S24: the request that the page names is used up."""
    asked = await rig.authorize(await registered(rig))
    assert told(await rig.decide(asked, code=rig.codes.make("consent")))["code"]
    assert (await rig.http.get(asked.headers["location"])).status_code == 400


async def test_the_owner_may_deny(rig: Rig) -> None:
    asked = await rig.authorize(await registered(rig))
    refused = told(await rig.decide(asked, decision="deny"))
    assert refused == {"error": "access_denied", "state": "a state", "iss": PUBLIC}


async def test_the_page_shows_strangers_words_as_words(rig: Rig) -> None:
    """S24 S01: what an app calls itself is escaped, and where the answer goes is shown."""
    client = (await rig.register(client_name='<script>x</script>"\u202e&')).json()["client_id"]
    asked = await rig.authorize(client)
    page = await rig.http.get(asked.headers["location"])
    assert "<script" not in page.text
    assert "\u202e" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "<dd>chatgpt.com</dd>" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action 'self' https://chatgpt.com;" in policy
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name",
    ["client_id", "redirect_uri", "resource", "state", "code_challenge"],
)
async def test_a_parameter_that_comes_twice_is_refused(rig: Rig, name: str) -> None:
    asked = f"/authorize?client_id=x&{name}=a&{name}=b"
    assert (await rig.http.get(asked)).json()["error"] == "invalid_request"


# --- what comes from strangers --------------------------------------------------------------------

EVIL = [
    *("javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "$(id)", "`id`", "--help", "&calc"),
    *("https://", "https:///x", "ftp://a.example/", "http://a.example/cb", "https://a.example/#f"),
    *("https://u:p@a.example/", "https://a.example/$(id)\n", "https://a.example/ x", "https://a.example:x/"),
    *("https://a.example/`id`", "https://a.example/<x>", "\\\\host\\share", "cursor://cb", "x" * 3000),
]


@pytest.mark.parametrize("uri", EVIL)
async def test_no_answer_goes_to_an_address_that_is_none(rig: Rig, uri: str) -> None:
    """S01: https, or http on this machine; nothing of it ever reaches a shell."""
    assert not is_redirect(uri)
    assert (await rig.register(redirect_uris=[uri])).status_code == 400


@pytest.mark.parametrize(
    "uri", [*EVIL, "http://127.0.0.1/c.json", "https://a.example", "https://a.example/../x"]
)
async def test_no_document_is_read_from_an_address_that_is_none(rig: Rig, uri: str) -> None:
    """S01"""
    assert not is_document(uri)
    assert (await rig.authorize(uri)).status_code == 400
    assert rig.fetched == []


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"not json",
        b"[" * 30_000,
        b'{"redirect_uris":' * 1500,
        {"client_id": "https://chatgpt.com/other.json", "redirect_uris": [BACK]},
        {"client_id": CIMD, "redirect_uris": []},
        {"client_id": CIMD, "redirect_uris": ["javascript:x"]},
        {"client_id": CIMD, "redirect_uris": [BACK] * 11},
        {"client_id": CIMD},
    ],
)
async def test_a_document_that_does_not_fit_is_no_registration(rig: Rig, document: Any) -> None:
    """S01 S24: it names its own address, and where answers may go."""
    rig.documents[CIMD] = document if isinstance(document, bytes) else json.dumps(document).encode()
    for _ in range(3):
        assert (await rig.authorize(CIMD)).status_code == 400
    assert rig.fetched == [CIMD]  # a failure is kept, too


async def test_documents_are_read_a_few_at_a_time(rig: Rig) -> None:
    """S22: a stranger's request makes this machine ask elsewhere, so it is bounded."""
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(url: str) -> bytes:
        rig.fetched.append(url)
        if len(rig.fetched) == READERS:
            begun.set()
        await go_on.wait()
        raise DownloadFailed

    rig.apps.document = slow
    async with anyio.create_task_group() as tasks:
        for number in range(READERS):
            tasks.start_soon(rig.authorize, f"https://a.example/{number}.json")
        with anyio.fail_after(5):
            await begun.wait()
            assert (await rig.authorize("https://a.example/late.json")).status_code == 400
        assert len(rig.fetched) == READERS
        go_on.set()
    rig.apps.document = rig._fetch
    document = {"client_id": CIMD, "redirect_uris": [BACK]}
    rig.documents[CIMD] = json.dumps(document).encode()
    assert (await rig.authorize(CIMD)).status_code == 302


async def test_clients_are_public_whatever_they_ask_for(rig: Rig) -> None:
    for method in ("client_secret_post", "client_secret_basic", "none"):
        answer = (await rig.register(token_endpoint_auth_method=method, scope="openid all")).json()
        assert answer["token_endpoint_auth_method"] == "none"
        assert answer.get("client_secret") is None
        assert answer["scope"] == "bridge"


async def test_registrations_are_bounded_and_the_oldest_unused_goes_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S22"""
    monkeypatch.setattr(apps_module, "MAX_APPS", 3)
    used = await registered(rig)
    await rig.tokens(used)
    rig.now += 1
    others = []
    for _ in range(3):
        rig.now += 61
        others.append(await registered(rig))
    assert (await rig.authorize(others[0])).status_code == 400
    for client in (used, *others[1:]):
        assert (await rig.authorize(client)).status_code == 302


async def test_registrations_are_slowed(rig: Rig) -> None:
    """S22"""
    statuses = [(await rig.register()).status_code for _ in range(61)]
    assert statuses == [201] * 60 + [400]


@pytest.mark.parametrize("path", ["/token", "/register", "/revoke", "/consent"])
async def test_bodies_are_bounded_and_typed(rig: Rig, path: str) -> None:
    """S22 S09"""
    kind = "application/json" if path == "/register" else "application/x-www-form-urlencoded"
    large = await rig.http.post(path, content=b"a" * 40_000, headers={"Content-Type": kind})
    assert large.status_code == 413
    plain = await rig.http.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415


# --- Host, Origin, CORS ---------------------------------------------------------------------------


def every_path() -> list[str]:
    face: Any = build(Scripted(), settings(public_url=PUBLIC), ScriptedSwitchboard(), _nothing())
    return sorted({*every_route(face), "/nothing"})


def _nothing() -> Any:
    return object()


@pytest.mark.parametrize("path", every_path())
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_every_route_looks_at_host_and_origin_first(rig: Rig, path: str, method: str) -> None:
    """S02 S03 S09: the routes are those of the application itself."""
    for host in ("evil.test", ".".join("0000") + ":24273"):
        assert (await rig.http.request(method, path, headers={"Host": host})).status_code == 421
    for origin in ("https://evil.test", "null", "file://"):
        refused = await rig.http.request(method, path, headers={"Origin": origin})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_a_page_of_an_allowed_origin_reads_what_a_browser_client_needs(rig: Rig) -> None:
    page = {"Origin": "http://localhost:6274"}
    asking = {**page, "Access-Control-Request-Method": "POST"}
    for path in ("/mcp", "/token", "/register", "/.well-known/oauth-protected-resource/mcp"):
        allowed = await rig.http.options(path, headers=asking)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == page["Origin"]
        assert "Authorization" in allowed.headers["access-control-allow-headers"]
    refused = await rig.http.post("/mcp", json={}, headers=page)
    assert refused.headers["access-control-expose-headers"].startswith("WWW-Authenticate")
    asked = await rig.authorize(await registered(rig))
    shown = await rig.http.get(asked.headers["location"], headers=page)
    assert "access-control-allow-origin" not in shown.headers


async def test_without_a_public_address_only_this_machine_is_served(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db", "http://127.0.0.1:24273") as rig:
        found = (await rig.http.get("/.well-known/oauth-authorization-server")).json()
        assert found["issuer"] == "http://127.0.0.1:24273"
        tokens = await rig.tokens(await registered(rig))
        assert (await rig.use(tokens["access_token"])).status_code == 200


async def test_a_public_address_with_a_path_is_found_where_the_standards_say(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db", PUBLIC + "/path") as rig, rig.client(PUBLIC + "/path") as http:
        for path in ("oauth-protected-resource/path/mcp", "oauth-authorization-server/path"):
            found = await http.get(f"{PUBLIC}/.well-known/{path}")
            assert found.status_code == 200
            assert f"{PUBLIC}/path" in found.text
