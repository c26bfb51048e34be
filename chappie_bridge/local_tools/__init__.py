"""The tools with which one session works with others (SPEC §5), for both ways in: `local` over MCP and the
built-in agent.  Knows wire and codec alone."""
