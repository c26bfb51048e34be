// Tells the bridge which session asks, lets ChatGPT begin a turn when Pi is idle, and says when another model
// is selected.  Written by `chappie-bridge model install pi`; remove this file to undo it.
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

const PROVIDER = "chappie";

export default function (pi: ExtensionAPI) {
  let leave: AbortController | undefined;
  let selected = false;

  const address = (ctx: any): { url: string; key: string } | undefined => {
    const model = ctx.model;
    if (!model || model.provider !== PROVIDER) return undefined;
    return { url: String(model.baseUrl).replace(/\/v1\/?$/, ""), key: "__KEY__" };
  };

  const tell = async (what: string, to: { url: string; key: string }, body: object, signal?: AbortSignal) => {
    const response = await fetch(`${to.url}/chappie/${what}`, {
      method: "POST",
      headers: { authorization: `Bearer ${to.key}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Error(`chappie: HTTP ${response.status}`);
    return await response.json();
  };

  const session = (ctx: any) => ({
    program: "pi",
    session: ctx.sessionManager.getSessionId?.() ?? "",
    file: ctx.sessionManager.getSessionFile?.() ?? "",
    cwd: ctx.cwd,
  });

  // While the model is ours: wait for a text that begins a turn.
  const listen = async (ctx: any) => {
    const to = address(ctx);
    if (!to || leave) return;
    selected = true;
    const mine = (leave = new AbortController());
    while (!mine.signal.aborted) {
      try {
        const told = await tell("wait", to, session(ctx), mine.signal);
        if (told.text && ctx.isIdle?.() !== false) pi.sendUserMessage(told.text);
      } catch {
        await new Promise((done) => setTimeout(done, 5000)); // the bridge is not there
      }
    }
  };

  const stop = (ctx: any, last: string | undefined) => {
    leave?.abort();
    leave = undefined;
    if (selected && last) {
      selected = false;
      tell("left", { url: last, key: "__KEY__" }, session(ctx)).catch(() => {});
    }
  };

  let url: string | undefined;
  const look = (ctx: any) => {
    const to = address(ctx);
    if (to) {
      url = to.url;
      void listen(ctx);
    } else {
      stop(ctx, url);
    }
  };

  pi.on("session_start", (_event: any, ctx: any) => look(ctx));
  pi.on("model_select", (_event: any, ctx: any) => look(ctx));
  pi.on("session_shutdown", (_event: any, ctx: any) => stop(ctx, url));
  pi.on("before_provider_headers", (event: any, ctx: any) => {
    if (!address(ctx)) return;
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
