"""What starts quickly imports little."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from chappie_bridge.cli import COMMANDS, root

HEAVY = ("anyio", "mcp", "pydantic", "rich", "starlette", "uvicorn", "websockets")
FACES = ("mcp", "mcp_types", "starlette", "uvicorn", "rich")


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of `names` are loaded after `code` ran in a fresh interpreter."""
    tail = f"""
import json, sys
print(json.dumps([name for name in {names!r} if name in sys.modules]), file=sys.stderr)"""
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, encoding="utf-8", check=True
    )
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


HELP = """
from chappie_bridge.cli import main
try:
    main(["--help"])
except SystemExit as ended:
    assert ended.code == 0
"""


def test_help_imports_click_alone() -> None:
    assert imported(HELP, HEAVY) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_own_help_is_light_too(command: str) -> None:
    code = HELP.replace('["--help"]', f'["{command}", "--help"]')
    assert imported(code, HEAVY) == []


def test_an_agent_process_imports_no_face() -> None:
    code = """
import chappie_bridge.cli.agent, chappie_agents.hosts.builtin, chappie_agents.dial, chappie_agents.terminal
import chappie_bridge.config, chappie_broker.state
"""
    assert imported(code, FACES) == []


def test_a_broker_without_ports_imports_no_face() -> None:
    assert imported("import chappie_bridge.cli.serving", FACES) == []


def test_a_shell_command_imports_no_face() -> None:
    assert imported("import chappie_bridge.cli.reach, chappie_bridge.cli.shell", FACES) == []


def test_mcp_over_http_imports_no_page() -> None:
    code = "import chappie_bridge.faces.chatgpt.server"
    assert imported(code, ("jinja2", "chappie_bridge.faces.dashboard.site")) == []


def test_completion_knows_the_commands_without_importing_them() -> None:
    code = """
import os
os.environ.update(_CHAPPIE_BRIDGE_COMPLETE="bash_complete", COMP_WORDS="chappie-bridge s", COMP_CWORD="1")
from chappie_bridge.cli import main
try:
    main([])
except SystemExit:
    pass
"""
    assert imported(code, HEAVY) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(shell: str) -> None:
    done = CliRunner().invoke(root, ["completion", shell])
    assert done.exit_code == 0
    assert "_CHAPPIE_BRIDGE_COMPLETE" in done.output
