-- Apps with the owner's consent, and the persons behind credentials.
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
