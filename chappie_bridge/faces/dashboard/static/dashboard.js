// Keeps a page as the server would render it now.  Everything works without this, by loading the page again.
"use strict";
(() => {
  const ENTRIES = 200; // of a live transcript; older ones go, and are read as older pages
  const AGAIN = 5000;
  const HIDDEN = 15000; // a page that nobody looks at holds no connection; it asks now and then

  const body = document.body;
  const line = document.getElementById("line");
  const announce = document.getElementById("announce");
  const code = document.getElementById("code");
  const served = new WeakMap(); // node -> the markup it was served as

  // The code of a login link comes behind `#`: no server and no log sees it before the person presses the button.
  if (code && location.hash.length > 1) {
    code.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
    document.getElementById("enter").focus();
  }
  if (!body.dataset.events) return;
  if (new URLSearchParams(location.search).has("told")) {
    const clean = new URL(location.href);
    clean.searchParams.delete("told");
    history.replaceState(null, "", clean);
  }

  const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  function localised(root) {
    for (const time of root.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.valueOf())) continue;
      time.title = time.dateTime;
      time.textContent = moments.format(at);
    }
  }

  // --- parts: what the server renders replaces what is there, child by child, where it differs ----------------

  const keyOf = (node) => node.dataset.key || "";
  const mark = (node) => { served.set(node, node.outerHTML); localised(node); return node; };

  function sync(part, fresh) {
    const wanted = new Set([...fresh.children].map(keyOf));
    for (const node of [...part.children]) if (!wanted.has(keyOf(node))) node.remove();
    const there = new Map([...part.children].map((node) => [keyOf(node), node]));
    let at = null;
    for (const next of [...fresh.children]) {
      const now = there.get(keyOf(next));
      let node = now;
      if (!now || served.get(now) !== next.outerHTML) {
        node = mark(document.importNode(next, true));
        if (now) replace(now, node);
      }
      const place = at ? at.nextElementSibling : part.firstElementChild;
      if (node !== place) part.insertBefore(node, place);
      at = node;
    }
  }

  function replace(now, node) {
    const focus = now.contains(document.activeElement) ? document.activeElement.id : "";
    now.replaceWith(node);
    if (focus) document.getElementById(focus)?.focus();
  }

  function waiting() {
    const count = (name) => Number.parseInt(document.querySelector(`[data-count="${name}"]`)?.textContent || "0", 10);
    return { approvals: count("approvals"), questions: count("questions") };
  }

  const title = document.title;
  let before = waiting();
  function counted() {
    const now = waiting();
    if (now.approvals > before.approvals) announce.textContent = "A tool waits for your approval.";
    else if (now.questions > before.questions) announce.textContent = "A question waits for you.";
    else announce.textContent = "";
    before = now;
    const sum = now.approvals + now.questions;
    document.title = sum ? `(${sum}) ${title}` : title;
  }

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!fresh.body.dataset.events) return location.reload(); // the login ended
    for (const part of document.querySelectorAll("[data-part]")) {
      const next = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (next) sync(part, next);
    }
    counted();
  }

  let asking = false;
  let again = false;
  async function refresh() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      do {
        again = false;
        const answer = await fetch(location.href, { headers: { "x-live": "1" } });
        if (answer.ok) show(await answer.text());
      } while (again);
    } catch { /* the stream says that the bridge is away */ }
    asking = false;
  }

  // --- forms -------------------------------------------------------------------------------------------------

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!("quiet" in form.dataset)) return;
    event.preventDefault();
    const data = new URLSearchParams(new FormData(form, event.submitter));
    const buttons = [...form.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    try {
      const answer = await fetch(form.action, { method: "POST", body: data, headers: { "x-live": "1" } });
      if (!answer.ok) return location.reload(); // the form is of another login
      show(await answer.text());
      document.getElementById("told").focus();
    } catch {
      line.textContent = "Not sent: the bridge does not answer";
      line.className = "down";
    }
    for (const button of buttons) button.disabled = false;
  });

  // --- streams -----------------------------------------------------------------------------------------------

  const entries = document.getElementById("entries");
  const problem = document.getElementById("problem");
  const follow = document.getElementById("follow");
  let changes = null;
  let transcript = null;
  let last = "";
  let timer = 0;

  function stream(url, kinds) {
    const source = new EventSource(url);
    source.onopen = () => { line.textContent = "Live"; line.className = ""; };
    source.onerror = () => {
      line.textContent = "Not connected, trying again";
      line.className = "down";
      if (source.readyState === EventSource.CLOSED) { clearTimeout(timer); timer = setTimeout(connect, AGAIN); }
    };
    for (const [kind, act] of Object.entries(kinds)) source.addEventListener(kind, act);
    return source;
  }

  function close() {
    changes?.close();
    transcript?.close();
    changes = transcript = null;
  }

  function connect() {
    close();
    changes = stream(body.dataset.events, { changed: refresh });
    if (!entries?.dataset.stream) return;
    const url = new URL(entries.dataset.stream, location.href);
    if (last) url.searchParams.set("after", last);
    transcript = stream(url, {
      entries: (event) => { append(event.data); last = decodeURIComponent(event.lastEventId); },
      problem: (event) => { problem.textContent = event.data; },
    });
  }

  function append(text) {
    const fresh = new DOMParser().parseFromString(`<ol>${text}</ol>`, "text/html");
    localised(fresh.body);
    for (const node of [...fresh.body.firstElementChild.children]) {
      const now = document.getElementById(node.id);
      if (now) now.replaceWith(document.importNode(node, true));
      else entries.append(document.importNode(node, true));
    }
    while (entries.childElementCount > ENTRIES) entries.firstElementChild.remove();
    if (follow?.getAttribute("aria-pressed") === "true") window.scrollTo(0, document.documentElement.scrollHeight);
  }

  if (follow && entries.dataset.stream) {
    follow.hidden = false;
    follow.setAttribute("aria-pressed", "false");
    follow.addEventListener("click", () => {
      const on = follow.getAttribute("aria-pressed") !== "true";
      follow.setAttribute("aria-pressed", String(on));
      if (on) window.scrollTo(0, document.documentElement.scrollHeight);
    });
  }

  let polling = 0;
  function attend() {
    clearInterval(polling);
    clearTimeout(timer);
    if (document.hidden) {
      close();
      polling = setInterval(refresh, HIDDEN);
    } else {
      connect();
    }
  }

  for (const part of document.querySelectorAll("[data-part]")) for (const node of part.children) mark(node);
  if (entries) localised(entries);
  counted();
  document.addEventListener("visibilitychange", attend);
  attend();
})();
