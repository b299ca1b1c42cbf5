-- The locks of lock-runtime in PostgreSQL 12 or newer. Run this once in the database, as its owner. It can be run again.
BEGIN;

CREATE TABLE IF NOT EXISTS distributed_locks (
    -- The key of a lock, in UTF-8.
    key bytea PRIMARY KEY,
    -- The token of the owner; NULL while a key stays taken after its release (`min_hold`).
    owner text,
    -- When the lease ends, by the clock of the server.
    until timestamptz NOT NULL,
    -- A number from the sequence below, drawn for the last grant. The fencing token of the holder is this one, or a
    -- higher one.
    fence bigint NOT NULL,
    -- Whether others wait for the key, so that its release has to notify them.
    wanted boolean NOT NULL DEFAULT false,
    -- An update of a column of a unique index locks a row like a deletion does. So nobody can take a lock over that a
    -- transaction has verified, until it ends. A renewal changes only `until`, and does not wait.
    CONSTRAINT distributed_locks_owner UNIQUE (key, owner)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Fencing tokens. They outlive the rows.
CREATE SEQUENCE IF NOT EXISTS distributed_lock_fences AS bigint;

COMMENT ON TABLE distributed_locks IS 'lock-runtime 1';

COMMIT;

-- What a user of the locks needs, in the place of `app`:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks TO app;
-- GRANT USAGE, UPDATE, SELECT ON distributed_lock_fences TO app;
