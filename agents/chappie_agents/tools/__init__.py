"""The native tools of the built-in agent, in the order a catalog lists them."""

from chappie_agents.tools.bash import BASH
from chappie_agents.tools.edit import EDIT
from chappie_agents.tools.find import FIND
from chappie_agents.tools.grep import GREP
from chappie_agents.tools.ls import LS
from chappie_agents.tools.read import READ
from chappie_agents.tools.tool import Arguments, Tool, ToolContext, ToolFailed
from chappie_agents.tools.write import WRITE

BUILTIN: tuple[Tool, ...] = (READ, WRITE, EDIT, BASH, LS, FIND, GREP)

__all__ = ["BUILTIN", "Arguments", "Tool", "ToolContext", "ToolFailed"]
