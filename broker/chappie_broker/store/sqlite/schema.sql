-- The registry of one broker.  This file is the truth: a fresh database is made from it, and an upgraded
-- one must come out equal (see upgrades/README.md).  Times are seconds since the epoch, UTC.

-- One device credential.
CREATE TABLE device (
    id         TEXT NOT NULL PRIMARY KEY, -- ours, random
    name       TEXT NOT NULL,             -- for people
    token_hash TEXT NOT NULL,             -- of the device's token; the token itself is only at the device
    created_at REAL NOT NULL,             -- when it was paired
    last_seen  REAL NOT NULL,             -- last sign of life, written behind
    revoked_at REAL                       -- its token is refused since then
) STRICT, WITHOUT ROWID;

-- One agent session on one device.
CREATE TABLE session (
    id         TEXT NOT NULL PRIMARY KEY,       -- the agent's own
    device     TEXT NOT NULL REFERENCES device, -- who first registered it; never changes
    agent      TEXT NOT NULL,                   -- the agent program
    cwd        TEXT NOT NULL,                   -- where it works, as the device writes paths
    first_seen REAL NOT NULL,                   -- when it first registered; orders the automatic choice
    last_seen  REAL NOT NULL,                   -- last sign of life, written behind
    model      TEXT,                            -- what the agent says it runs
    name       TEXT,                            -- for people
    parent     TEXT,                            -- of a sub-agent: the session that started it
    ended_at   REAL                             -- when it said goodbye; empty once it registers again
) STRICT, WITHOUT ROWID;
CREATE INDEX session_device ON session (device);
CREATE INDEX session_first_seen ON session (first_seen);
CREATE INDEX session_last_seen ON session (last_seen);

-- One chat.
CREATE TABLE conversation (
    id         TEXT NOT NULL PRIMARY KEY, -- keyed hash; the client's own value is never stored
    principal  TEXT NOT NULL,             -- the credential that it belongs to; part of the hash
    first_seen REAL NOT NULL,             -- its first request
    last_seen  REAL NOT NULL              -- its last request, written behind; tells a stale binding
) STRICT, WITHOUT ROWID;
CREATE INDEX conversation_last_seen ON conversation (last_seen);

-- A conversation's default session.
CREATE TABLE binding (
    conversation TEXT NOT NULL PRIMARY KEY      -- at most one each, and gone with it
        REFERENCES conversation ON DELETE CASCADE,
    session      TEXT NOT NULL REFERENCES session, -- stays, online or not
    saved_at     REAL NOT NULL                  -- when it was chosen
) STRICT, WITHOUT ROWID;
CREATE INDEX binding_session ON binding (session);

-- An operation that was told as unfinished, or accepted with a key.
CREATE TABLE operation (
    id          TEXT NOT NULL PRIMARY KEY, -- op_…
    kind        TEXT NOT NULL              -- what it does
        CHECK (kind IN ('batch', 'chat', 'transfer')),
    origin_kind TEXT NOT NULL              -- what asked for it
        CHECK (origin_kind IN ('conversation', 'session', 'shell')),
    origin      TEXT NOT NULL,             -- the id of what asked
    session     TEXT NOT NULL,             -- the target; no reference, this row may outlive the session's
    cwd         TEXT NOT NULL,             -- the target's directory at that time
    status      TEXT NOT NULL,             -- a word of wire.batch.Status, where that list is closed
    executed    TEXT NOT NULL              -- did a tool of it run?
        CHECK (executed IN ('no', 'yes', 'unknown')),
    principal   TEXT NOT NULL,             -- the credential that asked
    created_at  REAL NOT NULL,             -- when it was accepted
    key         TEXT,                      -- the caller's key, if it gave one
    finished_at REAL                       -- when it ended; empty while it may still change by itself
) STRICT, WITHOUT ROWID;
CREATE INDEX operation_end ON operation (finished_at, created_at);

-- What a transfer moves; there from before its first byte, so that another life of the broker goes on.
CREATE TABLE transfer (
    operation TEXT NOT NULL PRIMARY KEY             -- whose; gone with it
        REFERENCES operation ON DELETE CASCADE,
    request   TEXT NOT NULL,                        -- JSON; without the addresses of downloads
    files     TEXT NOT NULL                         -- JSON: how each file stands
) STRICT, WITHOUT ROWID;

-- What a caller's key stands for.
CREATE TABLE request_key (
    origin      TEXT NOT NULL, -- whose key: the id of a conversation, session or shell
    key         TEXT NOT NULL, -- as the caller wrote it
    fingerprint TEXT NOT NULL, -- of the request; another request with this key is refused
    operation   TEXT NOT NULL, -- what the request became; no reference, the two rows expire apart
    accepted_at REAL NOT NULL, -- when the request was accepted
    expires_at  REAL NOT NULL, -- from then on the key is free again
    PRIMARY KEY (origin, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX request_key_expires ON request_key (expires_at);

-- What accompanies a later response.
CREATE TABLE delivery (
    id          TEXT NOT NULL PRIMARY KEY, -- the receiver drops an id that it knows
    origin_kind TEXT NOT NULL              -- what it goes to
        CHECK (origin_kind IN ('conversation', 'session', 'shell')),
    origin      TEXT NOT NULL,             -- the id of what it goes to
    session     TEXT NOT NULL,             -- where it came from
    cwd         TEXT NOT NULL,             -- that session's directory at that time
    kind        TEXT NOT NULL              -- an operation's output, or a question's answer
        CHECK (kind IN ('result', 'answer')),
    status      TEXT NOT NULL              -- how far it came
        CHECK (status IN ('offered', 'sent', 'settled')),
    body        TEXT NOT NULL,             -- JSON
    created_at  REAL NOT NULL,             -- when it was made; the oldest is delivered first
    operation   TEXT,                      -- of a result: whose
    sent_at     REAL,                      -- when it last went out; stays when it is offered again
    settled_at  REAL                       -- when the receiver came back after it
) STRICT;
CREATE INDEX delivery_origin ON delivery (origin_kind, origin, created_at) WHERE status <> 'settled';
CREATE INDEX delivery_unsettled ON delivery (created_at) WHERE status <> 'settled';
CREATE INDEX delivery_settled ON delivery (settled_at) WHERE status = 'settled';

-- A question to the person in a chat.
CREATE TABLE question (
    id          TEXT NOT NULL PRIMARY KEY, -- ours, random: whoever has it may answer
    origin_kind TEXT NOT NULL              -- what asked, and is told the answer
        CHECK (origin_kind IN ('conversation', 'session', 'shell')),
    origin      TEXT NOT NULL,             -- the id of what asked
    principal   TEXT NOT NULL,             -- the credential that asked; to others it is unknown
    session     TEXT NOT NULL,             -- whose work it is about; no reference, this row may outlive it
    device      TEXT NOT NULL,             -- that session's device, for people, at that time
    cwd         TEXT NOT NULL,             -- that session's directory at that time
    asked       TEXT NOT NULL,             -- JSON: question, context, options
    stage       TEXT NOT NULL,             -- a word of wire.question.Stage, where that list is closed
    revision    INTEGER NOT NULL,          -- how often the person answered or skipped
    version     INTEGER NOT NULL,          -- counts every change, so that of two at once one is refused
    asked_at    REAL NOT NULL,             -- when it was asked
    changed_at  REAL NOT NULL,             -- its last change
    loaded_at   REAL,                      -- when its page first reported; empty: never
    answer      TEXT                       -- JSON; empty before the person reacted
) STRICT;
CREATE INDEX question_open ON question (origin_kind, origin) WHERE stage IN ('asked', 'shown');
CREATE INDEX question_changed ON question (changed_at);

-- Who did what, written behind, in groups.
CREATE TABLE audit (
    at          REAL NOT NULL,      -- when it happened
    who         TEXT NOT NULL,      -- principal, conversation or device
    what        TEXT NOT NULL,      -- the tool or command
    target      TEXT NOT NULL,      -- session or device; empty for none
    size        INTEGER NOT NULL,   -- bytes of the request or of the result
    outcome     TEXT NOT NULL,      -- what became of it
    duration_ms INTEGER,            -- how long it took; empty on the line written before dispatch
    id          INTEGER PRIMARY KEY -- the order of writing
) STRICT;
CREATE INDEX audit_at ON audit (at);

-- One client program that may ask the owner for consent (OAuth).
CREATE TABLE app (
    id         TEXT NOT NULL PRIMARY KEY, -- ours, random; or the address of its metadata document
    name       TEXT NOT NULL,             -- as it calls itself
    redirects  TEXT NOT NULL,             -- JSON: the exact addresses to which an answer may go
    created_at REAL NOT NULL,             -- when it registered
    last_used  REAL NOT NULL              -- its last consent or token; of the unused the oldest goes first
) STRICT, WITHOUT ROWID;

-- One consent of the owner, and the tokens that came of it.
CREATE TABLE app_grant (
    id            TEXT NOT NULL PRIMARY KEY, -- ours, random; part of its tokens
    app           TEXT NOT NULL              -- who may come in; the consent goes with it
        REFERENCES app ON DELETE CASCADE,
    resource      TEXT NOT NULL,             -- the address that its tokens are for
    created_at    REAL NOT NULL,             -- when the owner consented
    last_used     REAL NOT NULL,             -- last sign of life, written behind
    refresh_hash  TEXT NOT NULL,             -- of the one refresh token that is good; any other was used up
    refresh_until REAL NOT NULL,             -- from then on the consent is over
    access_hash   TEXT NOT NULL,             -- of the newest access token
    access_until  REAL NOT NULL,             -- it is refused from then on
    before_hash   TEXT NOT NULL,             -- of the access token before, for requests on their way; or empty
    before_until  REAL NOT NULL              -- likewise refused from then on
) STRICT, WITHOUT ROWID;
CREATE INDEX app_grant_app ON app_grant (app);

-- One person as ChatGPT names them, seen with one credential.
CREATE TABLE subject (
    credential TEXT NOT NULL, -- a principal, or a consent's id
    hash       TEXT NOT NULL, -- keyed; the value itself is never stored
    status     TEXT NOT NULL  -- may they use it?
        CHECK (status IN ('allowed', 'waiting')),
    first_seen REAL NOT NULL, -- the first of a credential is allowed by itself
    last_seen  REAL NOT NULL, -- written behind
    PRIMARY KEY (credential, hash)
) STRICT, WITHOUT ROWID;

-- What is made once for this registry.
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY, -- e.g. the key of conversation ids
    value TEXT NOT NULL              -- never changes
) STRICT, WITHOUT ROWID;
