"""What `up` tells when it is ready: where it is, and what to paste where."""

from pathlib import Path
from typing import NamedTuple

from chappie_bridge.wire.owner import MakeCode
from chappie_bridge.wire.ports import Office
from chappie_bridge.wire.values import Caller


class Ready(NamedTuple):
    """`secret` is the file that holds the install secret; None: no credential is needed.  `dashboard` logs
    one browser in."""

    url: str
    dashboard: str
    link: str
    state: Path
    secret: Path | None
    headers: dict[str, str]
    session: str | None
    directory: Path | None
    public: str = ""
    """The address elsewhere at which apps come in by OAuth, without `/mcp`; empty: there is none."""


def words(ready: Ready) -> str:
    """For a person on a terminal."""
    header = "".join(f"{name}: {value}" for name, value in ready.headers.items())
    lines = ["ready", "", f"  MCP      {ready.url}"]
    lines.append(f"  header   {header or 'none: whoever reaches the port is let in'}")
    if ready.session is not None:
        lines.append(f"  session  {ready.session} in {ready.directory}")
    lines.append(f"  watch    {ready.dashboard}")
    lines += [f"  agents   {ready.link}", f"  state    {ready.state}", ""]
    lines += [
        "ChatGPT, through its Secure MCP Tunnel: save this as ~/.config/tunnel-client/chappie.yaml, run",
        "`tunnel-client run --profile chappie`, then add a custom MCP server with `Connection: Tunnel` and",
        "`No authentication` in ChatGPT.",
        "",
        *tunnel_profile(ready.url, ready.secret).splitlines(),
        "",
        *_by_oauth(ready.public),
        "Any MCP client on this machine:",
        "",
        f"  claude mcp add --transport http chappie {ready.url}"
        + (f' --header "{header}"' if header else ""),
        "  or over stdio, without a port or a secret: chappie-bridge mcp",
        "",
        "Ctrl-C stops all of it.",
    ]
    return "\n".join(lines)


def _by_oauth(public: str) -> list[str]:
    if not public:
        return []
    return [
        "ChatGPT, by OAuth: add a custom MCP server with `OAuth` and the URL below. On the page that it",
        "opens type what `chappie-bridge code` prints; that works once, for ten minutes.",
        "",
        f"  {public}/mcp",
        "",
    ]


async def login_link(office: Office, dashboard: str) -> str:
    """It works once, for ten minutes.  What stands behind `#` reaches no server and no log."""
    made = await office.make_code(MakeCode(caller=Caller(principal="owner", source="shell"), purpose="login"))
    return f"{dashboard}/login#{made.code}"


def tunnel_profile(url: str, secret: Path | None) -> str:
    """A tunnel client's profile.  The secret is named by its file, never copied."""
    lines = [
        "  config_version: 1",
        "  control_plane:",
        "    tunnel_id: tunnel_...                  # platform.openai.com, Tunnels",
        "    api_key: env:CONTROL_PLANE_API_KEY",
        "  mcp:",
        f"    server_urls: [{{channel: main, url: {url}}}]",
        "    startup_wait_timeout: 60s",
    ]
    if secret is not None:
        lines.append(f"    extra_headers: {{X-Chappie-Key: file:{secret}}}")
        lines.append(f"    discovery_extra_headers: {{X-Chappie-Key: file:{secret}}}")
    return "\n".join(lines)
