-- The locks of lock-runtime in PostgreSQL 12 or newer. Run this once in the database, as its owner. It can be run again.
BEGIN;
-- One at a time.
SELECT pg_advisory_xact_lock(7595446221094703949);

DO $$
BEGIN
    IF to_regclass('distributed_locks') IS NULL THEN
        CREATE TABLE distributed_locks (
            -- The key of a lock, in UTF-8.
            key bytea PRIMARY KEY,
            -- The token of the owner; NULL while a key stays taken after its release (`min_hold`).
            owner text,
            -- When the lease ends, by the clock of the server.
            until timestamptz NOT NULL,
            -- A number from the sequence below, drawn for the last grant. The fencing token of the holder is this one,
            -- or a higher one.
            fence bigint NOT NULL,
            -- Whether others wait for the key, so that its release has to notify them.
            wanted boolean NOT NULL DEFAULT false,
            -- An update of a column of a unique index locks a row like a deletion does. So nobody can take a lock over
            -- that a transaction has verified, until it ends. A renewal changes only `until`, and does not wait.
            CONSTRAINT distributed_locks_owner UNIQUE (key, owner)
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
        COMMENT ON TABLE distributed_locks IS 'lock-runtime 1';
    ELSIF obj_description(to_regclass('distributed_locks'), 'pg_class') IS DISTINCT FROM 'lock-runtime 1' THEN
        RAISE EXCEPTION 'the table distributed_locks is not that of lock-runtime 1; rename or upgrade it';
    END IF;
    IF to_regclass('distributed_lock_fences') IS NULL THEN
        CREATE SEQUENCE distributed_lock_fences AS bigint;
    END IF;
END
$$;

-- Fencing tokens outlive the rows. They are at least the time in microseconds: where the sequence was lost, or the
-- database comes from a backup, running this again makes them higher than all before. Everyone who draws a token changes
-- the table, so nobody draws one between the two reads of the value. All other requests wait behind this, so it fails
-- if something else, such as a manual VACUUM, keeps the table for longer than a second.
SELECT set_config('lock_timeout', '1s', true);
LOCK TABLE distributed_locks IN SHARE ROW EXCLUSIVE MODE;
SELECT setval('distributed_lock_fences', micros)
FROM distributed_lock_fences,
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros) AS now
WHERE last_value < micros;

COMMIT;

-- What a user of the locks needs, in the place of `app`:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks TO app;
-- GRANT USAGE, UPDATE, SELECT ON distributed_lock_fences TO app;
