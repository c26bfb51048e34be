// What each JavaScript client does, given how it lists and calls tools.  Prints one JSON line.
// The argument is the JSON that test_clients.py makes; the client's script hands over `list`, `call` (with what
// hears progress, or nothing) and `read`.

import { createHash } from "node:crypto";

export const job = JSON.parse(process.argv[2]);

const sha256 = (blob) => createHash("sha256").update(Buffer.from(blob, "base64")).digest("hex");
const texts = (result) => result.content.map((block) => block.text);

export async function play({ protocol, list, call, read }) {
  const session = { sessionId: job.session };
  const tools = (await list()).tools.map((tool) => tool.name);
  const init = await call("init", session);
  const batch = await call("call", { ...session, calls: job.calls });
  const newest = await call("history", { ...session, limit: 1 });
  const after = JSON.parse(texts(newest)[1]).entry;
  const waiting = call("history", { ...session, after, wait: true });
  await new Promise((resolve) => setTimeout(resolve, job.pauseMs)); // the wait is very likely under way
  await call("call", { ...session, calls: job.later });
  const waited = await waiting;
  const exported = await call("transfer", { ...session, paths: [job.file] });
  const { uri } = exported.content.find((block) => block.type === "resource_link");
  const { blob } = (await read(uri)).contents[0];
  const shown = await call("call", { ...session, calls: [job.image] });
  const { images } = JSON.parse(texts({ content: shown.content.filter((block) => block.type === "text") })[1]);
  const image = (await read(images[0])).contents[0].blob;
  const { held, rest, from, into } = job.moves;
  const heard = [];
  let asked;
  const hears = ({ progress, total }) => {
    heard.push({ progress, total });
    asked ??= fetch(rest); // the file goes on when a word of it has come
  };
  const taken = await call("transfer", { ...session, files: [held], paths: [`${into}/taken.bin`] }, hears);
  await asked;
  const copied = await call("transfer", { ...session, from, paths: [`${into}/copied.bin`] });
  const refused = await call("init", { ...session, sesionId: "misspelt" });
  console.log(
    JSON.stringify({
      protocol: protocol(),
      tools,
      init: texts(init),
      batch: texts(batch),
      waited: texts(waited),
      file: sha256(blob),
      image: sha256(image),
      taken: texts(taken),
      copied: texts(copied),
      heard,
      refused: { isError: refused.isError === true, texts: texts(refused) },
    }),
  );
}
