// An app that knows the address of a bridge and nothing else, with the OAuth of an SDK.  One line of JSON out where
// it needs a person or has something to tell; one in for each answer.

import { createInterface } from "node:readline";

export const job = JSON.parse(process.argv[2]);

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const answer = async (value) => (tell(value), JSON.parse((await lines.next()).value));

class Memory {
  // What an app keeps of a bridge; the SDK fills it.
  redirectUrl = job.redirect;
  clientMetadata = { client_name: job.name, redirect_uris: [job.redirect], token_endpoint_auth_method: "none" };
  state() {
    return (this.sent = crypto.randomUUID());
  }
  clientInformation = () => this.client;
  saveClientInformation = (client) => void (this.client = client);
  tokens = () => this.held;
  saveTokens = (tokens) => void (this.held = tokens);
  redirectToAuthorization = (url) => void (this.page = url.href);
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);
  codeVerifier = () => this.verifier;
  saveDiscoveryState = (found) => void (this.found = found);
  discoveryState = () => this.found;
  invalidateCredentials(what) {
    if (["all", "client"].includes(what)) this.client = undefined;
    if (["all", "tokens"].includes(what)) this.held = undefined;
  }
}

// `Unauthorized` is what the SDK throws where a person is needed; `finish` hands a transport what the browser brought
// back.
export async function play({ transportFor, clientFor, Unauthorized, finish, call }) {
  const memory = new Memory();
  const refused = async (work) => {
    try {
      await work();
    } catch (error) {
      if (error instanceof Unauthorized) return true;
      throw error;
    }
    return false;
  };
  const first = transportFor(memory);
  const strange = await refused(() => clientFor().connect(first));
  const back = new URL(await answer({ strange, page: memory.page, client: memory.client })).searchParams;
  if (back.get("state") !== memory.sent) throw new Error("another state came back");
  await finish(first, back);
  const letIn = { ...memory.held };

  const client = clientFor();
  await client.connect(transportFor(memory));
  const init = await call(client, "init", { sessionId: job.session });
  const batch = await call(client, "call", { sessionId: job.session, calls: job.calls });
  memory.held = { ...memory.held, access_token: "chp_a_of_yesterday" };
  const renewed = await call(client, "sessions", {});
  const used = { letIn, refreshed: { ...memory.held }, init, batch, renewed };

  await answer(used); // the owner revokes the app meanwhile
  const before = memory.client.client_id;
  const revoked = await refused(() => call(client, "call", { sessionId: job.session, calls: job.calls }));
  tell({ revoked, held: memory.held ?? null, anew: memory.client?.client_id !== before, page: memory.page });
  await client.close();
  process.exit(0);
}
