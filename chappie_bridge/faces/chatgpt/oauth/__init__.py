"""OAuth 2.1 for MCP over HTTP: authorization server and resource server in one process."""
