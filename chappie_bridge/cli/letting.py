"""`code`, `apps`, `subjects`: whom the owner lets in at the MCP front door."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from chappie_agents.caller import RemoteSwitchboard

    from chappie_bridge.config import Loaded


@click.command()
@settings()
@as_json
def code(loaded: Loaded, as_json: bool) -> None:
    """Print a one-time code that lets an app in: type it on the page that the app opened.

    It works once, for ten minutes.
    """
    from chappie_bridge.wire.owner import MakeCode

    from . import output
    from .reach import SHELL, ask

    async def work(broker: RemoteSwitchboard) -> int:
        made = await broker.make_code(MakeCode(caller=SHELL, purpose="consent"))
        if as_json:
            output.document({"code": made.code, "expires": made.expires})
        else:
            click.echo(made.code)
        return 0

    ask(loaded.settings, work)


@click.command()
@click.argument("action", type=click.Choice(["list", "revoke"]), default="list")
@click.argument("app", required=False)
@settings()
@as_json
def apps(loaded: Loaded, as_json: bool, action: str, app: str | None) -> None:
    """List the apps that registered for OAuth, or revoke APP: its tokens are refused at once."""
    from chappie_bridge.codec.unicode import display
    from chappie_bridge.wire.ids import AppId
    from chappie_bridge.wire.owner import ListApps, RevokeApp

    from . import output
    from .reach import SHELL, ask

    if (action == "revoke") != (app is not None):
        raise click.UsageError("`apps revoke APP` revokes, `apps` lists")

    async def work(broker: RemoteSwitchboard) -> int:
        if app is not None:
            await broker.revoke_app(RevokeApp(caller=SHELL, app=AppId(app)))
        found = (await broker.list_apps(ListApps(caller=SHELL))).apps
        if as_json:
            output.document({"apps": [each.model_dump(mode="json") for each in found]})
            return 0
        for each in found:
            since = f"let in {each.consented}" if each.consented else "not let in"
            click.echo(f"{display(each.id, 200)}  {since}  {display(each.name, 80)}")
        return 0

    ask(loaded.settings, work)


@click.command()
@click.argument("action", type=click.Choice(["list", "allow", "forget"]), default="list")
@click.argument("subject", required=False)
@settings()
@as_json
def subjects(loaded: Loaded, as_json: bool, action: str, subject: str | None) -> None:
    """List the ChatGPT users seen with each credential; allow or forget SUBJECT.

    The first of a credential is allowed by itself, any other waits.  When all of a credential are forgotten,
    the next one is allowed.
    """
    from chappie_bridge.wire.owner import ListSubjects, RuleSubject

    from . import output
    from .reach import SHELL, ask

    if (action == "list") != (subject is None):
        raise click.UsageError("`subjects allow SUBJECT` or `subjects forget SUBJECT`; `subjects` lists")

    async def work(broker: RemoteSwitchboard) -> int:
        if subject is not None:
            rule = RuleSubject(caller=SHELL, subject=subject, allow=action == "allow")
            await broker.rule_subject(rule)
        found = (await broker.list_subjects(ListSubjects(caller=SHELL))).subjects
        if as_json:
            output.document({"subjects": [each.model_dump(mode="json") for each in found]})
            return 0
        for each in found:
            click.echo(f"{each.id}  {each.status:<7}  last seen {each.last_seen}  with {each.credential}")
        return 0

    ask(loaded.settings, work)
