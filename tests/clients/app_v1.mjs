// npm @modelcontextprotocol/sdk, version 1, with its `auth`.
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { job, play } from "./app.mjs";

await play({
  transportFor: (authProvider) => new StreamableHTTPClientTransport(new URL(job.url), { authProvider }),
  clientFor: () => new Client({ name: job.name, version: "1" }),
  Unauthorized: UnauthorizedError,
  finish: (transport, back) => transport.finishAuth(back.get("code")),
  call: (client, name, args) => client.callTool({ name, arguments: args, _meta: job.meta }),
});
