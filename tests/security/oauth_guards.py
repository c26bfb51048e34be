"""The guards of OAuth, for guards.py: tokens, consents, and what is read because an app names it."""

from tests.security.guard import Guard

_FACE = "chappie_bridge/faces/chatgpt"
_APPS = "broker/chappie_broker/apps.py"
_DOWNLOAD = "broker/chappie_broker/download.py"
_METADATA = f"{_FACE}/oauth/metadata.py"
_PROVIDER = f"{_FACE}/oauth/provider.py"
_ROUTES = f"{_FACE}/oauth/routes.py"
_DOCUMENT = "tests/broker/test_document.py"
_OAUTH = "tests/faces/chatgpt/test_oauth.py"

# What the SDK compares is taken away by what it is given: its own files are not in the copy of the tree.
_CODE = "        return self._codes.get(digest)\n"
_ANOTHER_REDIRECT = """\
        found = self._codes.get(digest)
        return found and found.model_copy(update={"redirect_uri": AnyUrl("https://chatgpt.com/other")})
"""
_ANY_VERIFIER = """\
        found = self._codes.get(digest)
        equal = type("", (), {"__ne__": lambda *_: False})()
        return found and found.model_copy(update={"code_challenge": equal})
"""
_AUTHORIZE = "from mcp.server.auth.handlers.authorize import AuthorizationHandler\n"
_ANY_CHALLENGE = """\
import mcp.server.auth.handlers.authorize
from mcp.server.auth.handlers.authorize import AuthorizationHandler, AuthorizationRequest


class _Any(AuthorizationRequest):
    code_challenge: str = "x" * 43
    code_challenge_method: str = "plain"


mcp.server.auth.handlers.authorize.AuthorizationRequest = _Any
"""
_OWN = """\
        if held is None or held.app != client.client_id:
            return None
        return RefreshToken(token=refresh_token, client_id=held.app, scopes=[SCOPE])
"""
_REDEEM = """\
            await self._office.redeem_code(
                RedeemCode(
                    caller=_OWNER,
                    purpose="consent",
                    code=code[:200] if isinstance(code, str) else "",
                    by=f"consent {name}",
                )
            )
"""

OAUTH_GUARDS = (
    Guard(
        "S01",
        "an app's answer goes to an address over https, or on this machine",
        _METADATA,
        'return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)',
        "return True",
        f"{_OAUTH}::test_no_answer_goes_to_an_address_that_is_none",
    ),
    Guard(
        "S01",
        "an app's document is read from an address over https",
        _METADATA,
        'if not is_redirect(text) or not text.startswith("https://"):',
        "if not is_redirect(text):",
        f"{_OAUTH}::test_no_document_is_read_from_an_address_that_is_none",
    ),
    Guard(
        "S16",
        "an app's document is read from the open internet",
        _DOWNLOAD,
        "if not allowed.anywhere(to) and not all(is_open(address) for address in addresses):",
        "if False:",
        f"{_DOCUMENT}::test_no_document_is_read_in_a_closed_network",
    ),
    Guard(
        "S16",
        "what the owner opened for files is closed to documents",
        _APPS,
        "self._bounds._replace(allowed=Allowed())",
        "self._bounds",
        f"{_DOCUMENT}::test_what_the_owner_opened_for_files_is_closed_to_documents",
    ),
    Guard(
        "S16",
        "the reader of a document is not led on",
        _DOWNLOAD,
        'if body.status != 200:\n                    raise DownloadFailed(f"The address of the document',
        'if body.status >= 400:\n                    raise DownloadFailed(f"The address of the document',
        f"{_DOCUMENT}::test_a_document_is_not_led_on",
    ),
    Guard(
        "S16",
        "a document has a size",
        _DOWNLOAD,
        "if len(found) > most:",
        "if False:",
        f"{_DOCUMENT}::test_a_document_is_small",
    ),
    Guard(
        "S16",
        "a document is JSON",
        _DOWNLOAD,
        'if not re.fullmatch(r"application/([a-z0-9.-]+\\+)?json", kind):',
        "if False:",
        f"{_DOCUMENT}::test_a_document_is_json_and_says_so",
    ),
    Guard(
        "S16",
        "few documents are read at once",
        _PROVIDER,
        "if self._reading >= READERS:",
        "if False:",
        f"{_OAUTH}::test_documents_are_read_a_few_at_a_time",
    ),
    Guard(
        "S23",
        "a token is good for the address that it was given for",
        _APPS,
        "if found is None or grant is None or grant.resource != resource:",
        "if found is None or grant is None:",
        f"{_OAUTH}::test_a_token_for_another_address_is_refused",
    ),
    Guard(
        "S23",
        "an app asks for a token of this very server",
        _PROVIDER,
        "if params.resource != self._resource:",
        "if False:",
        f"{_OAUTH}::test_a_token_is_asked_for_this_server_only",
    ),
    Guard(
        "S23",
        "the same where it gets the token",
        _ROUTES,
        'if form.get("resource", metadata.resource(base)) != metadata.resource(base):',
        "if False:",
        f"{_OAUTH}::test_a_token_is_asked_for_this_server_only",
    ),
    Guard(
        "S23",
        "what was not made here is no token",
        _APPS,
        "if hmac.compare_digest(digest, found.digest) and now < until:",
        "if now < until:",
        f"{_OAUTH}::test_a_refresh_token_or_a_made_up_one_is_no_access_token",
    ),
    Guard(
        "S23",
        "a token grows old",
        _APPS,
        "if hmac.compare_digest(digest, found.digest) and now < until:",
        "if hmac.compare_digest(digest, found.digest):",
        f"{_OAUTH}::test_an_access_token_is_short",
    ),
    Guard(
        "S23",
        "an app whose consent ended meanwhile learns nothing more",
        f"{_FACE}/server.py",
        "            if exchange.withdrawn():\n",
        "            if False:\n",
        f"{_OAUTH}::test_an_app_whose_consent_ends_during_a_call_learns_no_more",
    ),
    Guard(
        "S24",
        "an answer goes to a registered address, as it is written",
        _ROUTES,
        "if redirect is not None and redirect not in known:",
        "if False:",
        f"{_OAUTH}::test_an_altered_redirect_is_refused_and_not_followed",
    ),
    Guard(
        "S24",
        "the address is the same where the code is exchanged",
        _PROVIDER,
        _CODE,
        _ANOTHER_REDIRECT,
        f"{_OAUTH}::test_another_redirect_at_the_token_endpoint_is_refused",
    ),
    Guard(
        "S24",
        "PKCE is there, and never plain",
        _ROUTES,
        _AUTHORIZE,
        _ANY_CHALLENGE,
        f"{_OAUTH}::test_missing_and_plain_pkce_are_refused",
    ),
    Guard(
        "S24",
        "a code is worth nothing without its verifier",
        _PROVIDER,
        _CODE,
        _ANY_VERIFIER,
        f"{_OAUTH}::test_a_code_without_its_verifier_is_worth_nothing",
    ),
    Guard(
        "S24",
        "a code works once",
        _PROVIDER,
        "if self._codes.pop(digest, None) is None or",
        "if self._codes.get(digest) is None or",
        f"{_OAUTH}::test_a_replayed_code_is_refused_and_ends_what_it_gave",
    ),
    Guard(
        "S24",
        "a code that comes again ends what it gave",
        _PROVIDER,
        "            if used.grant is not None:\n",
        "            if False:\n",
        f"{_OAUTH}::test_a_replayed_code_is_refused_and_ends_what_it_gave",
    ),
    Guard(
        "S24",
        "a refresh token works once",
        _APPS,
        "if not hmac.compare_digest(grant.refresh_hash, found.digest):",
        "if False:",
        f"{_OAUTH}::test_a_replayed_refresh_token_ends_the_whole_family",
    ),
    Guard(
        "S24",
        "a refresh token that comes again ends its family",
        _APPS,
        '            await self._end(grant.id)\n            self._note(grant.app, "a used',
        '            self._note(grant.app, "a used',
        f"{_OAUTH}::test_a_replayed_refresh_token_ends_the_whole_family",
    ),
    Guard(
        "S24",
        "a refresh token is its app's own",
        _PROVIDER,
        _OWN,
        _OWN.replace(" or held.app != client.client_id", "").replace("held.app", "client.client_id"),
        f"{_OAUTH}::test_another_apps_refresh_token_is_refused",
    ),
    Guard(
        "S24",
        "nobody is let in without the owner's code",
        _ROUTES,
        _REDEEM,
        "",
        f"{_OAUTH}::test_nobody_is_let_in_without_the_owners_code",
    ),
    Guard(
        "S24",
        "a request is decided once",
        _ROUTES,
        "if self._waiting.take(name) is None:",
        "if self._waiting.get(name) is None:",
        f"{_OAUTH}::test_a_decision_is_made_once",
    ),
    Guard(
        "S24",
        "a parameter comes once",
        _ROUTES,
        "if len(set(names)) != len(names):",
        "if False:",
        f"{_OAUTH}::test_a_parameter_that_comes_twice_is_refused",
    ),
    Guard(
        "S24",
        "an app's words on the page are text",
        f"{_FACE}/oauth/page.py",
        "{escape(display(app.name, 80))}",
        "{app.name}",
        f"{_OAUTH}::test_the_page_shows_strangers_words_as_words",
    ),
    Guard(
        "S24",
        "an app's document names its own address",
        _PROVIDER,
        'if not isinstance(document, dict) or document.get("client_id") != url:',
        "if not isinstance(document, dict):",
        f"{_OAUTH}::test_a_document_that_does_not_fit_is_no_registration",
    ),
)
