// Tells the bridge which session, agent and directory a request belongs to, lets ChatGPT begin a turn when a
// session is idle, and says when another model answers there.  Written by `chappie-bridge model install
// opencode`; remove this file to undo it.
const PROVIDER = "chappie";
const URL = "__URL__";
const KEY = "__KEY__";

export const Chappie = async ({ client, directory }: any) => {
  const listening = new Map<string, AbortController>();

  const tell = async (what: string, session: string, signal?: AbortSignal) => {
    const response = await fetch(`${URL}/chappie/${what}`, {
      method: "POST",
      headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
      body: JSON.stringify({ program: "opencode", session, cwd: directory }),
      signal,
    });
    if (!response.ok) throw new Error(`chappie: HTTP ${response.status}`);
    return (await response.json()) as any;
  };

  const listen = async (session: string, model: string) => {
    if (listening.has(session)) return;
    const mine = new AbortController();
    listening.set(session, mine);
    while (!mine.signal.aborted) {
      try {
        const told = await tell("wait", session, mine.signal);
        if (!told.text) continue;
        await client.session.promptAsync({
          path: { id: session },
          query: { directory },
          body: {
            model: { providerID: PROVIDER, modelID: model },
            parts: [{ type: "text", text: told.text }],
          },
        });
      } catch {
        await new Promise((done) => setTimeout(done, 5000)); // the bridge is not there
      }
    }
  };

  const leave = (session: string) => {
    const mine = listening.get(session);
    if (!mine) return;
    mine.abort();
    listening.delete(session);
    tell("left", session).catch(() => {});
  };

  return {
    event: async ({ event }: any) => {
      if (event?.type === "session.deleted") leave(String(event.properties?.info?.id ?? ""));
    },
    "chat.headers": async (input: any, output: any) => {
      const session = String(input.sessionID ?? "");
      const agent = String(input.agent?.name ?? input.agent ?? "");
      if (String(input.model?.providerID ?? input.provider?.info?.id ?? PROVIDER) !== PROVIDER) {
        if (agent !== "title") leave(session);
        return;
      }
      const set = (name: string, value: string) => {
        // A header takes no other characters; the bridge finds the directory in the system text as well.
        if (/^[\x20-\x7e]+$/.test(value)) output.headers[name] = value;
      };
      set("x-chappie-host", "opencode");
      set("x-chappie-cwd", String(directory ?? ""));
      set("x-chappie-agent", agent);
      set("x-chappie-session", session);
      if (agent !== "title") void listen(session, String(input.model?.modelID ?? input.model?.id ?? PROVIDER));
    },
  };
};
