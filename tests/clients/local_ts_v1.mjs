// npm @modelcontextprotocol/sdk, version 1, over stdio: one line of JSON in for each call, one out for each result.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const server = JSON.parse(process.argv[2]);
const client = new Client({ name: "local-ts-v1", version: "1" });
await client.connect(new StdioClientTransport({ ...server, stderr: "inherit" }));
const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
tell({ tools: (await client.listTools()).tools.map((tool) => tool.name) });
const calls = [];
for await (const line of createInterface({ input: process.stdin })) {
  const { id, tool, args } = JSON.parse(line);
  const call = client.callTool({ name: tool, arguments: args }, undefined, { timeout: 120_000 });
  calls.push(call.then((result) => tell({ id, result })));
}
await Promise.all(calls);
await client.close();
