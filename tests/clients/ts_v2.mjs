// npm @modelcontextprotocol/client, version 2.  The second argument is the era: legacy or a pinned version.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { job, play } from "./steps.mjs";

const era = process.argv[3];
const options = era === "legacy" ? {} : { versionNegotiation: { mode: { pin: era } } };
const transport = new StreamableHTTPClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
const client = new Client({ name: "ts-v2", version: "1" }, options);
await client.connect(transport);
await play({
  protocol: () => client.getNegotiatedProtocolVersion(),
  list: () => client.listTools(),
  call: (name, args, onprogress) => client.callTool({ name, arguments: args, _meta: job.meta }, { onprogress }),
  read: (uri) => client.readResource({ uri }),
});
await client.close();
