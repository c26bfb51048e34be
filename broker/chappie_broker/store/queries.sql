-- Every query of the registry, in SQL that SQLite and PostgreSQL both read.  Columns are written out in
-- the order of the row's fields in rows.py.  What changes a list of rows does so by id, row by row.

-- name: devices
-- All devices, also revoked ones: sessions belong to them.
SELECT id, name, token_hash, created_at, last_seen, revoked_at FROM device;

-- name: save_device
-- Add a device, or change what may change of it.
INSERT INTO device (id, name, token_hash, created_at, last_seen, revoked_at)
VALUES (:id, :name, :token_hash, :created_at, :last_seen, :revoked_at)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, token_hash = excluded.token_hash, last_seen = excluded.last_seen,
    revoked_at = excluded.revoked_at;

-- name: touch_device
-- Move a device's last sign of life forward.
UPDATE device SET last_seen = :at WHERE id = :id AND last_seen < :at;

-- name: revoke_device
-- Forget a device's token; the first time counts.
UPDATE device SET revoked_at = :at, token_hash = '' WHERE id = :id AND revoked_at IS NULL;

-- name: sessions
-- All sessions, in the order of the automatic choice.
SELECT id, device, agent, cwd, first_seen, last_seen, model, name, parent, ended_at
FROM session ORDER BY first_seen;

-- name: upsert_session
-- Register a session; a row of another device is left alone, and then no row is counted.
INSERT INTO session (id, device, agent, cwd, first_seen, last_seen, model, name, parent, ended_at)
VALUES (:id, :device, :agent, :cwd, :first_seen, :last_seen, :model, :name, :parent, :ended_at)
ON CONFLICT (id) DO UPDATE
SET agent = excluded.agent, cwd = excluded.cwd, last_seen = excluded.last_seen, model = excluded.model,
    name = excluded.name, parent = excluded.parent, ended_at = excluded.ended_at
WHERE session.device = excluded.device;

-- name: touch_session
-- Move a session's last sign of life forward.
UPDATE session SET last_seen = :at WHERE id = :id AND last_seen < :at;

-- name: end_session
-- A session said goodbye, or its lease ran out.
UPDATE session SET ended_at = :at WHERE id = :id;

-- name: bound_conversations
-- The conversations that have a default session.
SELECT conversation.id, conversation.principal, conversation.first_seen, conversation.last_seen
FROM binding JOIN conversation ON conversation.id = binding.conversation;

-- name: touch_conversation
-- Add a conversation, or move its last request forward.
INSERT INTO conversation (id, principal, first_seen, last_seen)
VALUES (:id, :principal, :first_seen, :last_seen)
ON CONFLICT (id) DO UPDATE SET last_seen = excluded.last_seen
WHERE conversation.last_seen < excluded.last_seen;

-- name: bindings
-- All default sessions.
SELECT conversation, session, saved_at FROM binding;

-- name: save_binding
-- Set a conversation's default session.
INSERT INTO binding (conversation, session, saved_at) VALUES (:conversation, :session, :saved_at)
ON CONFLICT (conversation) DO UPDATE SET session = excluded.session, saved_at = excluded.saved_at;

-- name: delete_binding
-- A conversation has no default session any more.
DELETE FROM binding WHERE conversation = :conversation;

-- name: open_operations
-- The operations that had not ended, oldest first.
SELECT id, kind, origin_kind, origin, session, cwd, status, executed, principal, created_at, key, finished_at
FROM operation WHERE finished_at IS NULL ORDER BY created_at;

-- name: operation
-- One operation.
SELECT id, kind, origin_kind, origin, session, cwd, status, executed, principal, created_at, key, finished_at
FROM operation WHERE id = :id;

-- name: save_operation
-- Add an operation, or change how far it is; where it came from and goes to never changes.
INSERT INTO operation
    (id, kind, origin_kind, origin, session, cwd, status, executed, principal, created_at, key, finished_at)
VALUES
    (:id, :kind, :origin_kind, :origin, :session, :cwd, :status, :executed, :principal, :created_at, :key, :finished_at)
ON CONFLICT (id) DO UPDATE
SET status = excluded.status, executed = excluded.executed, finished_at = excluded.finished_at;

-- name: finish_operation
-- Note the end of an operation.
UPDATE operation SET status = :status, executed = :executed, finished_at = :at WHERE id = :id;

-- name: save_transfer
-- Add a transfer, or change how its files stand.
INSERT INTO transfer (operation, request, files) VALUES (:operation, :request, :files)
ON CONFLICT (operation) DO UPDATE SET files = excluded.files;

-- name: transfer
-- What a transfer moves.
SELECT operation, request, files FROM transfer WHERE operation = :operation;

-- name: live_keys
-- The keys that have not expired.
SELECT origin, key, fingerprint, operation, accepted_at, expires_at
FROM request_key WHERE expires_at > :now;

-- name: accept_key
-- Take a key that is free or expired; a live one is left alone, and then no row is counted.
INSERT INTO request_key (origin, key, fingerprint, operation, accepted_at, expires_at)
VALUES (:origin, :key, :fingerprint, :operation, :accepted_at, :expires_at)
ON CONFLICT (origin, key) DO UPDATE
SET fingerprint = excluded.fingerprint, operation = excluded.operation,
    accepted_at = excluded.accepted_at, expires_at = excluded.expires_at
WHERE request_key.expires_at <= excluded.accepted_at;

-- name: request_key
-- What a key stands for.
SELECT origin, key, fingerprint, operation, accepted_at, expires_at
FROM request_key WHERE origin = :origin AND key = :key;

-- name: release_key
-- Forget a key whose operation never ran.
DELETE FROM request_key WHERE origin = :origin AND key = :key AND operation = :operation;

-- name: unsettled_deliveries
-- Everything on its way, oldest first.
SELECT id, origin_kind, origin, session, cwd, kind, status, body, created_at, operation, sent_at, settled_at
FROM delivery WHERE status <> 'settled' ORDER BY created_at;

-- name: deliveries_of
-- What is on its way to one origin, oldest first.
SELECT id, origin_kind, origin, session, cwd, kind, status, body, created_at, operation, sent_at, settled_at
FROM delivery WHERE origin_kind = :origin_kind AND origin = :origin AND status <> 'settled'
ORDER BY created_at LIMIT :limit;

-- name: save_delivery
-- Add a delivery; a known id is left alone, for it may have gone further by now.
INSERT INTO delivery
    (id, origin_kind, origin, session, cwd, kind, status, body, created_at, operation, sent_at, settled_at)
VALUES
    (:id, :origin_kind, :origin, :session, :cwd, :kind, :status, :body, :created_at, :operation, :sent_at,
     :settled_at)
ON CONFLICT (id) DO NOTHING;

-- name: drop_delivery
-- Make room for one that says more.
DELETE FROM delivery WHERE id = :id;

-- name: mark_sent
-- A delivery went out.
UPDATE delivery SET status = 'sent', sent_at = :at WHERE id = :id AND status = 'offered';

-- name: mark_unsent
-- A delivery went out in vain.
UPDATE delivery SET status = 'offered' WHERE id = :id AND status = 'sent';

-- name: settle
-- A delivery's receiver came back after it.
UPDATE delivery SET status = 'settled', settled_at = :at WHERE id = :id AND status <> 'settled';

-- name: save_question
-- Add a question; a known id is left alone.
INSERT INTO question
    (id, origin_kind, origin, principal, session, device, cwd, asked, stage, revision, version, asked_at,
     changed_at, loaded_at, answer)
VALUES
    (:id, :origin_kind, :origin, :principal, :session, :device, :cwd, :asked, :stage, :revision, :version,
     :asked_at, :changed_at, :loaded_at, :answer)
ON CONFLICT (id) DO NOTHING;

-- name: question
-- One question.
SELECT id, origin_kind, origin, principal, session, device, cwd, asked, stage, revision, version, asked_at,
    changed_at, loaded_at, answer
FROM question WHERE id = :id;

-- name: change_question
-- How a question stands now, if nobody changed it since it was read; else no row is counted.
UPDATE question
SET stage = :stage, revision = :revision, version = :version, changed_at = :changed_at,
    loaded_at = :loaded_at, answer = :answer
WHERE id = :id AND version = :version - 1;

-- name: open_questions
-- How many questions of one origin wait for the person.
SELECT count(*) FROM question
WHERE origin_kind = :origin_kind AND origin = :origin AND stage IN ('asked', 'shown');

-- name: recent_questions
-- The questions that changed last, newest first.
SELECT id, origin_kind, origin, principal, session, device, cwd, asked, stage, revision, version, asked_at,
    changed_at, loaded_at, answer
FROM question ORDER BY changed_at DESC LIMIT :limit;

-- name: apps
-- All apps.
SELECT id, name, redirects, created_at, last_used FROM app;

-- name: save_app
-- Add an app, or change what may change of it.
INSERT INTO app (id, name, redirects, created_at, last_used)
VALUES (:id, :name, :redirects, :created_at, :last_used)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, redirects = excluded.redirects, last_used = excluded.last_used;

-- name: delete_app
-- Forget an app, with the owner's consents.
DELETE FROM app WHERE id = :id;

-- name: app_grants
-- All consents.
SELECT id, app, resource, created_at, last_used, refresh_hash, refresh_until, access_hash, access_until,
    before_hash, before_until
FROM app_grant;

-- name: save_app_grant
-- Add a consent, or change its tokens.
INSERT INTO app_grant (id, app, resource, created_at, last_used, refresh_hash, refresh_until, access_hash,
    access_until, before_hash, before_until)
VALUES (:id, :app, :resource, :created_at, :last_used, :refresh_hash, :refresh_until, :access_hash,
    :access_until, :before_hash, :before_until)
ON CONFLICT (id) DO UPDATE
SET last_used = excluded.last_used, refresh_hash = excluded.refresh_hash,
    refresh_until = excluded.refresh_until, access_hash = excluded.access_hash,
    access_until = excluded.access_until, before_hash = excluded.before_hash,
    before_until = excluded.before_until;

-- name: touch_app_grant
-- Move a consent's last sign of life forward.
UPDATE app_grant SET last_used = :at WHERE id = :id AND last_used < :at;

-- name: delete_app_grant
-- A consent is over.
DELETE FROM app_grant WHERE id = :id;

-- name: subjects
-- All persons behind credentials.
SELECT credential, hash, status, first_seen, last_seen FROM subject;

-- name: save_subject
-- Add a person, or change what may change.
INSERT INTO subject (credential, hash, status, first_seen, last_seen)
VALUES (:credential, :hash, :status, :first_seen, :last_seen)
ON CONFLICT (credential, hash) DO UPDATE SET status = excluded.status, last_seen = excluded.last_seen;

-- name: delete_subject
-- Forget a person behind a credential.
DELETE FROM subject WHERE credential = :credential AND hash = :hash;

-- name: append_audit
-- Write one line of the audit log.
INSERT INTO audit (at, who, what, target, size, outcome, duration_ms)
VALUES (:at, :who, :what, :target, :size, :outcome, :duration_ms);

-- name: last_audit
-- The number of the newest line of the audit log.
SELECT id FROM audit ORDER BY id DESC LIMIT 1;

-- name: audit_page
-- A page of the audit log, newest first.
SELECT at, who, what, target, size, outcome, duration_ms, id
FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: prune_keys
-- Forget expired keys.
DELETE FROM request_key WHERE (origin, key) IN (
    SELECT origin, key FROM request_key WHERE expires_at <= :before ORDER BY expires_at LIMIT :limit);

-- name: prune_operations
-- Forget operations that ended long ago.
DELETE FROM operation WHERE id IN (
    SELECT id FROM operation WHERE finished_at < :before ORDER BY finished_at LIMIT :limit);

-- name: prune_settled
-- Forget deliveries that were settled long ago.
DELETE FROM delivery WHERE id IN (
    SELECT id FROM delivery WHERE status = 'settled' AND settled_at < :before
    ORDER BY settled_at LIMIT :limit);

-- name: note_unsettled
-- Put into the audit log which deliveries nobody came back for: those that prune_unsettled forgets next.
INSERT INTO audit (at, who, what, target, size, outcome)
SELECT :now, origin_kind || ':' || origin, kind, session || ' ' || coalesce(operation, id), length(body), 'given up'
FROM delivery WHERE status <> 'settled' AND created_at < :before ORDER BY created_at LIMIT :limit;

-- name: prune_unsettled
-- Forget deliveries that nobody came back for.
DELETE FROM delivery WHERE id IN (
    SELECT id FROM delivery WHERE status <> 'settled' AND created_at < :before
    ORDER BY created_at LIMIT :limit);

-- name: prune_questions
-- Forget questions that nothing happened to for long.
DELETE FROM question WHERE id IN (
    SELECT id FROM question WHERE changed_at < :before ORDER BY changed_at LIMIT :limit);

-- name: prune_audit
-- Forget old lines of the audit log.
DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < :before ORDER BY at LIMIT :limit);

-- name: prune_audit_to
-- Forget the first lines of the audit log, up to a number.
DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id <= :last ORDER BY id LIMIT :limit);

-- name: prune_conversations
-- Forget conversations that fell silent long ago, with their bindings.
DELETE FROM conversation WHERE id IN (
    SELECT id FROM conversation WHERE last_seen < :before ORDER BY last_seen LIMIT :limit);

-- name: prune_sessions
-- Forget sessions that were last seen long ago, unless a conversation has one as its default.
DELETE FROM session WHERE id IN (
    SELECT id FROM session
    WHERE last_seen < :before AND NOT EXISTS (SELECT 1 FROM binding WHERE binding.session = session.id)
    ORDER BY last_seen LIMIT :limit);

-- name: prune_devices
-- Forget devices that were revoked long ago and own no session any more.
DELETE FROM device WHERE id IN (
    SELECT id FROM device
    WHERE revoked_at < :before AND NOT EXISTS (SELECT 1 FROM session WHERE session.device = device.id)
    ORDER BY revoked_at LIMIT :limit);

-- name: meta
-- A value that was made once.
SELECT value FROM meta WHERE name = :name;

-- name: meta_once
-- Set a value unless there is one.
INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING;
