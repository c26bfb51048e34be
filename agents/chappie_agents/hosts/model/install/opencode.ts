// Tells the bridge which session, agent and directory a request belongs to, and where OpenCode's own server
// is.  Written by `chappie-bridge model install opencode`; remove this file to undo it.
const PROVIDER = "chappie";

export const Chappie = async ({ directory, serverUrl }: any) => ({
  "chat.headers": async (input: any, output: any) => {
    if (String(input.model?.providerID ?? input.provider?.info?.id ?? PROVIDER) !== PROVIDER) return;
    const set = (name: string, value: unknown) => {
      // A header takes no other characters; the bridge finds the directory in the system text as well.
      if (/^[\x20-\x7e]+$/.test(String(value ?? ""))) output.headers[name] = String(value);
    };
    set("x-chappie-host", "opencode");
    set("x-chappie-cwd", directory);
    set("x-chappie-agent", input.agent?.name ?? input.agent);
    set("x-chappie-session", input.sessionID);
    set("x-chappie-server", serverUrl);
  },
});
