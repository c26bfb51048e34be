// Tells the bridge which session asks, lets ChatGPT begin a turn when Pi is idle, and says when another model
// is selected.  Written by `chappie-bridge model install pi`; remove this file to undo it.
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

const PROVIDER = "chappie";
const URL = "__URL__";
const KEY = "__KEY__";

export default function (pi: ExtensionAPI) {
  let leave: AbortController | undefined;

  const ours = (ctx: any) => ctx.model?.provider === PROVIDER;

  const tell = async (what: string, body: object, signal?: AbortSignal) => {
    const response = await fetch(`${URL}/chappie/${what}`, {
      method: "POST",
      headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Error(`chappie: HTTP ${response.status}`);
    return (await response.json()) as any;
  };

  const session = (ctx: any) => ({
    program: "pi",
    session: ctx.sessionManager.getSessionId?.() ?? "",
    file: ctx.sessionManager.getSessionFile?.() ?? "",
    cwd: ctx.cwd,
  });

  // While the model is ours: wait for a text that begins a turn.
  const listen = async (ctx: any) => {
    if (leave) return;
    const mine = (leave = new AbortController());
    while (!mine.signal.aborted) {
      try {
        const told = await tell("wait", session(ctx), mine.signal);
        if (told.text && ctx.isIdle?.() !== false) pi.sendUserMessage(told.text);
      } catch {
        await new Promise((done) => setTimeout(done, 5000)); // the bridge is not there
      }
    }
  };

  const stop = (ctx: any) => {
    if (!leave) return;
    leave.abort();
    leave = undefined;
    tell("left", session(ctx)).catch(() => {});
  };

  const look = (ctx: any) => (ours(ctx) ? void listen(ctx) : stop(ctx));

  pi.on("session_start", (_event: any, ctx: any) => look(ctx));
  pi.on("model_select", (_event: any, ctx: any) => look(ctx));
  pi.on("session_shutdown", (_event: any, ctx: any) => stop(ctx));
  pi.on("before_provider_headers", (event: any, ctx: any) => {
    if (!ours(ctx)) return;
    const set = (name: string, value: unknown) => {
      // A header takes no other characters; the bridge finds the directory in the system text as well.
      if (typeof value === "string" && /^[\x20-\x7e]+$/.test(value)) event.headers[name] = value;
    };
    set("x-chappie-host", "pi");
    set("x-chappie-session-id", ctx.sessionManager.getSessionId?.());
    set("x-chappie-session-file", encodeURI(ctx.sessionManager.getSessionFile?.() ?? ""));
    set("x-chappie-ext-cwd", ctx.cwd);
  });
}
