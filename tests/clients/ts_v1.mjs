// npm @modelcontextprotocol/sdk, version 1: the client that most programs of today are built on.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { job, play } from "./steps.mjs";

const transport = new StreamableHTTPClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
const client = new Client({ name: "ts-v1", version: "1" });
await client.connect(transport);
await play({
  protocol: () => transport.protocolVersion,
  list: () => client.listTools(),
  call: (name, args, onprogress) =>
    client.callTool({ name, arguments: args, _meta: job.meta }, undefined, { onprogress }),
  read: (uri) => client.readResource({ uri }),
});
await client.close();
