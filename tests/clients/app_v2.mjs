// npm @modelcontextprotocol/client, version 2, with its `auth`, which compares `iss` too.  The second argument is the
// era: legacy or a pinned version.
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from "@modelcontextprotocol/client";
import { job, play } from "./app.mjs";

const era = process.argv[3];
const options = era === "legacy" ? {} : { versionNegotiation: { mode: { pin: era } } };
await play({
  transportFor: (authProvider) => new StreamableHTTPClientTransport(new URL(job.url), { authProvider }),
  clientFor: () => new Client({ name: job.name, version: "1" }, options),
  Unauthorized: UnauthorizedError,
  finish: (transport, back) => transport.finishAuth(back),
  call: (client, name, args) => client.callTool({ name, arguments: args, _meta: job.meta }),
});
