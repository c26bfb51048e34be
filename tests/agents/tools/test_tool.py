"""What every native tool has in common."""

import re
from pathlib import Path

import chappie_agents
import pytest
from chappie_agents.tools import BUILTIN, Tool


def test_the_catalog_is_complete_and_says_what_runs_together() -> None:
    assert {tool.name: tool.parallel for tool in BUILTIN} == {
        "read": True,
        "write": False,
        "edit": False,
        "bash": True,
        "ls": True,
        "find": True,
        "grep": True,
    }


@pytest.mark.parametrize("tool", BUILTIN, ids=lambda tool: tool.name)
def test_a_definition_is_flat_and_every_parameter_is_described(tool: Tool) -> None:
    parameters = tool.definition().parameters
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert isinstance(properties, dict)
    for schema in properties.values():
        assert isinstance(schema, dict)
        assert schema["description"]
    assert "$ref" not in str(parameters)
    assert "\n" not in tool.description


def test_no_line_of_ours_goes_through_a_shell_by_accident() -> None:
    """S15: argv lists only."""
    sources = Path(chappie_agents.__path__[0]).rglob("*.py")
    guilty = re.compile(r"shell\s*=\s*True|os\.system\(|os\.popen\(|create_subprocess_shell")
    assert [path for path in sources if guilty.search(path.read_text(encoding="utf-8"))] == []
