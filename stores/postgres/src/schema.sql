-- The locks of lock-runtime in PostgreSQL 12 or newer. Run this once in the database, as its owner. It can be run again.
BEGIN;
-- One at a time.
SELECT pg_advisory_xact_lock(7595446221094703949);

DO $$
DECLARE
    name text;
    permission record;
    creates boolean := to_regclass('distributed_lock_claims') IS NULL OR to_regclass('distributed_lock_records') IS NULL;
BEGIN
    FOREACH name IN ARRAY ARRAY['distributed_locks', 'distributed_lock_claims', 'distributed_lock_records'] LOOP
        IF to_regclass(name) IS NOT NULL
            AND obj_description(to_regclass(name), 'pg_class') IS DISTINCT FROM 'lock-runtime 1'
        THEN
            RAISE EXCEPTION 'the table % is not that of lock-runtime 1; rename or upgrade it', name;
        END IF;
    END LOOP;
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
            -- Whether others wait for the key: claims of `distributed_lock_claims`, or programs of a version without those,
            -- which its release has to notify.
            wanted boolean NOT NULL DEFAULT false,
            -- An update of a column of a unique index locks a row like a deletion does. So nobody can take a lock over
            -- that a transaction has verified, until it ends. A renewal changes only `until`, and does not wait.
            CONSTRAINT distributed_locks_owner UNIQUE (key, owner)
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
        COMMENT ON TABLE distributed_locks IS 'lock-runtime 1';
    END IF;
    IF to_regclass('distributed_lock_fences') IS NULL THEN
        CREATE SEQUENCE distributed_lock_fences AS bigint;
    END IF;
    IF to_regclass('distributed_lock_claims') IS NULL THEN
        -- The claims to shares of a capacity: a permit of a semaphore is a share of its limit. A reader has one share of
        -- 10000000000, and a writer has all of them. While there are holders, `distributed_locks` has a row of the key, whose owner
        -- is the kind of the lock in parentheses. Only who has locked that row adds and removes claims, and its `until` is not
        -- before the end of any of their leases. A claim to an exclusive lock, of 0 shares of 0, is here only while it waits.
        CREATE TABLE distributed_lock_claims (
            key bytea NOT NULL,
            -- The token of the owner; after `kept:` while its shares stay taken after their release (`min_hold`).
            owner text NOT NULL,
            shares bigint NOT NULL,
            -- The capacity by which the owner counts.
            capacity bigint NOT NULL,
            -- The place in the queue, which is in the order of the numbers; NULL for a holder.
            ticket bigint,
            -- For how many seconds a claim that waits gets its shares, until its client renews them.
            term float8 NOT NULL,
            -- When the lease ends, or the claim is given up, by the clock of the server.
            until timestamptz NOT NULL,
            PRIMARY KEY (key, owner)
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
        COMMENT ON TABLE distributed_lock_claims IS 'lock-runtime 1';
    END IF;
    IF to_regclass('distributed_lock_records') IS NULL THEN
        -- What is known about a key beside its lock. Only the owner of the key changes it.
        CREATE TABLE distributed_lock_records (
            key bytea NOT NULL,
            -- 'run': the last run of a period; 'announcement': what the holder says about itself.
            kind text NOT NULL,
            -- The owner of the run, or the one whose announcement counts while it has the key.
            owner text,
            -- Who runs, or what is announced.
            content text,
            -- When the run began and ended, in ms since 1970, by the clock of the server.
            began bigint,
            ended bigint,
            failed boolean,
            -- Whether it counts for its period.
            counts boolean,
            -- The last request for its start, and the owner of a run whose body has not begun.
            attempt int,
            undone text,
            -- When it is given up.
            until timestamptz NOT NULL,
            PRIMARY KEY (key, kind)
        ) WITH (fillfactor = 70);
        COMMENT ON TABLE distributed_lock_records IS 'lock-runtime 1';
    END IF;
    -- Who may use the first table may use the others.
    FOR permission IN
        SELECT privilege_type, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS grantee
        FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass('distributed_locks')
        UNION
        SELECT 'ALL', relowner::regrole::text FROM pg_class WHERE oid = to_regclass('distributed_locks')
    LOOP
        IF creates AND permission.privilege_type IN ('ALL', 'SELECT', 'INSERT', 'UPDATE', 'DELETE') THEN
            EXECUTE format(
                'GRANT %s ON distributed_lock_claims, distributed_lock_records TO %s',
                permission.privilege_type, permission.grantee
            );
        END IF;
    END LOOP;
END
$$;

-- What holds for all of the following functions: at the level of isolation READ COMMITTED, each statement in them sees what was
-- committed before it. At a higher level, they fail if somebody has got or lost the lock meanwhile. They wait for the row of the
-- key, and for renewals, but not for transactions that have verified a hold. A wait is short, because other requests come next
-- on the connection: when it is over, the statement fails, and the client repeats it.

-- Gives an exclusive lock that is free to the claim that comes next, and tells its client, unless it is that of one owner. Returns
-- the owner of the claim, or NULL if nobody waits. The caller has locked the row of the key.
CREATE OR REPLACE FUNCTION distributed_lock_pass(of_key bytea, silent text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    next record;
BEGIN
    DELETE FROM distributed_lock_claims WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM distributed_lock_claims WHERE key = of_key AND until <= clock_timestamp() FOR UPDATE SKIP LOCKED
    ));
    LOOP
        SELECT * INTO next FROM distributed_lock_claims WHERE key = of_key AND capacity = 0 ORDER BY ticket LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        -- It may have given up.
        DELETE FROM distributed_lock_claims WHERE key = of_key AND owner = next.owner;
        EXIT WHEN FOUND;
    END LOOP;
    UPDATE distributed_locks SET
        owner = next.owner,
        until = clock_timestamp() + make_interval(secs => next.term),
        fence = nextval('distributed_lock_fences'),
        wanted = EXISTS (SELECT FROM distributed_lock_claims WHERE key = of_key AND capacity = 0)
    WHERE key = of_key;
    IF next.owner <> silent THEN
        PERFORM pg_notify('distributed_locks', concat_ws(' ', encode(of_key, 'hex'), next.owner, next.ticket, next.term));
    END IF;
    RETURN next.owner;
END
$$;

-- Acquires an exclusive lock for `seconds`. The outcomes are those of `distributed_lock_claim`, and `fence` is the fencing token.
CREATE OR REPLACE FUNCTION distributed_lock_acquire(
    of_key bytea, claimant text, seconds float8, waits boolean,
    OUT outcome text, OUT rest float8, OUT place bigint, OUT ahead bigint, OUT fence bigint, OUT other bigint, OUT actual text
) LANGUAGE plpgsql AS $$
DECLARE
    lasts interval := make_interval(secs => seconds);
    ends timestamptz;
    next text;
BEGIN
    -- Says that the owner is acquiring, until the commit.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(claimant, 0)), set_config('lock_timeout', '20ms', true);
    LOOP
        IF waits THEN
            SELECT l.owner, l.until INTO actual, ends FROM distributed_locks AS l WHERE l.key = of_key FOR NO KEY UPDATE;
        ELSE
            SELECT l.owner, l.until INTO actual, ends FROM distributed_locks AS l WHERE l.key = of_key
            FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        EXIT WHEN FOUND;
        -- Another transaction works on it. Its commit may wait for a standby.
        IF NOT waits AND EXISTS (SELECT FROM distributed_locks AS l WHERE l.key = of_key) THEN
            outcome := 'BUSY';
            rest := 0.1;
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
        INSERT INTO distributed_locks (key, owner, until, fence) VALUES (of_key, NULL, clock_timestamp(), 0)
        ON CONFLICT (key) DO NOTHING;
    END LOOP;
    UPDATE distributed_lock_claims AS c SET until = clock_timestamp() + interval '5 s'
    WHERE c.key = of_key AND c.owner = claimant AND c.until > clock_timestamp();
    IF ends > clock_timestamp() AND actual IS DISTINCT FROM claimant THEN
        IF actual LIKE '(%' THEN
            outcome := 'FORMAT';
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
    ELSE
        -- It stays taken while a transaction is open that has verified it.
        PERFORM FROM distributed_locks AS l WHERE l.key = of_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND actual IS DISTINCT FROM claimant THEN
            outcome := 'BUSY';
            rest := 0.1;
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
        IF actual LIKE '(%' THEN
            -- Those who wait for another kind get its error with their next attempt.
            DELETE FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NOT NULL AND c.capacity > 0;
        END IF;
        IF actual IS DISTINCT FROM claimant THEN
            next := distributed_lock_pass(of_key, claimant);
        END IF;
        IF next IS NULL OR next = claimant THEN
            UPDATE distributed_locks AS l SET
                owner = claimant, until = greatest(l.until, clock_timestamp() + lasts), fence = nextval('distributed_lock_fences')
            WHERE l.key = of_key RETURNING l.fence INTO fence;
            outcome := 'GRANTED';
            RETURN;
        END IF;
        SELECT l.until INTO ends FROM distributed_locks AS l WHERE l.key = of_key;
    END IF;
    rest := greatest(extract(epoch FROM ends - clock_timestamp()), 0.001);
    outcome := 'BUSY';
    IF waits THEN
        INSERT INTO distributed_lock_claims AS c (key, owner, shares, capacity, ticket, term, until)
        VALUES (of_key, claimant, 0, 0, nextval('distributed_lock_fences'), least(seconds, 3), clock_timestamp() + interval '5 s')
        ON CONFLICT (key, owner) DO UPDATE SET until = excluded.until
        RETURNING c.ticket INTO place;
        UPDATE distributed_locks AS l SET wanted = true WHERE l.key = of_key AND NOT l.wanted;
        ahead := (SELECT count(*) FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket < place);
        outcome := 'QUEUED';
    END IF;
    IF next IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Ends the hold of an owner, and its claim, and gives the lock to the claim that comes next. It stays taken for `keep` seconds. The
-- outcomes are those of `distributed_lock_leave`.
CREATE OR REPLACE FUNCTION distributed_lock_release(of_key bytea, leaver text, keep float8, OUT outcome text, OUT woken bigint)
LANGUAGE plpgsql AS $$
DECLARE
    own distributed_locks%ROWTYPE;
    had boolean;
    next text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(leaver, 0)) THEN
        outcome := 'ACQUIRING';
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    -- Waits for renewals, and for those who begin to wait.
    SELECT * INTO own FROM distributed_locks AS l WHERE l.key = of_key FOR NO KEY UPDATE;
    had := own.until > clock_timestamp();
    DELETE FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.owner = leaver AND c.capacity = 0;
    IF own.owner IS DISTINCT FROM leaver THEN
        outcome := CASE WHEN had THEN 'TAKEN' ELSE 'GONE' END;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN;
    END IF;
    PERFORM FROM distributed_locks AS l WHERE l.key = of_key FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE WHEN had THEN 'VERIFIED' ELSE 'GONE' END;
        RETURN;
    END IF;
    outcome := CASE WHEN had THEN 'FREED' ELSE 'GONE' END;
    woken := 0;
    IF had AND keep > 0 THEN
        UPDATE distributed_locks AS l SET owner = NULL, until = clock_timestamp() + make_interval(secs => keep)
        WHERE l.key = of_key;
        RETURN;
    END IF;
    next := distributed_lock_pass(of_key, '');
    IF next IS NOT NULL THEN
        woken := 1;
        RETURN;
    END IF;
    DELETE FROM distributed_locks AS l WHERE l.key = of_key;
    IF own.wanted THEN
        -- For programs that wait without a claim.
        PERFORM pg_notify('distributed_locks', encode(of_key, 'hex'));
        woken := 1;
    END IF;
    IF own.until < clock_timestamp() + interval '1 minute' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Ends the leases of a key that are over, and gives shares to the claims whose turn it is, in the order of their tickets. The
-- first one that does not fit holds the others back, so that claims for few shares do not overtake one for many. Their clients
-- are told, except that of one owner. Returns how many claims got theirs.
CREATE OR REPLACE FUNCTION distributed_lock_settle(of_key bytea, silent text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    claim record;
    taken numeric;
    granted bigint := 0;
BEGIN
    DELETE FROM distributed_lock_claims WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM distributed_lock_claims WHERE key = of_key AND until <= clock_timestamp() FOR UPDATE SKIP LOCKED
    ));
    SELECT coalesce(sum(shares), 0) INTO taken FROM distributed_lock_claims WHERE key = of_key AND ticket IS NULL;
    FOR claim IN
        SELECT * FROM distributed_lock_claims
        WHERE key = of_key AND ticket IS NOT NULL AND capacity > 0 ORDER BY ticket
    LOOP
        EXIT WHEN taken + claim.shares > claim.capacity;
        UPDATE distributed_lock_claims SET ticket = NULL, until = clock_timestamp() + make_interval(secs => claim.term)
        WHERE key = of_key AND owner = claim.owner;
        taken := taken + claim.shares;
        granted := granted + 1;
        IF claim.owner <> silent THEN
            PERFORM pg_notify(
                'distributed_locks', concat_ws(' ', encode(of_key, 'hex'), claim.owner, claim.ticket, claim.term)
            );
        END IF;
    END LOOP;
    IF granted > 0 THEN
        UPDATE distributed_locks SET until = greatest(until, clock_timestamp() + interval '10 s') WHERE key = of_key;
    END IF;
    RETURN granted;
END
$$;

-- Locks the row of a key that is this kind of lock, or is none, which makes one.
CREATE OR REPLACE FUNCTION distributed_lock_row(of_key bytea, kind text, OUT actual text, OUT ends timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        SELECT l.owner, l.until INTO actual, ends FROM distributed_locks AS l WHERE l.key = of_key FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        -- There are holders if somebody has deleted the row.
        INSERT INTO distributed_locks (key, owner, until, fence)
        SELECT of_key, kind, greatest(clock_timestamp(), max(c.until)), 0
        FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NULL
        ON CONFLICT (key) DO NOTHING;
    END LOOP;
END
$$;

-- Acquires shares for `seconds`. If they are not free, the claim stands in the queue if it `waits`, for 5 s after each attempt.
-- Outcomes:
--   GRANTED   the owner has the shares; `fence` is the fencing token of a writer
--   BUSY      others have the lock; the next lease ends in `rest` seconds
--   QUEUED    the same; the claim has this `place`, behind `ahead` others
--   FORMAT    the key is another kind of lock: `actual` is the owner of its row
-- `other` is another capacity by which a holder counts.
CREATE OR REPLACE FUNCTION distributed_lock_claim(
    of_key bytea, claimant text, seconds float8, wanted bigint, total bigint, waits boolean,
    OUT outcome text, OUT rest float8, OUT place bigint, OUT ahead bigint, OUT fence bigint, OUT other bigint, OUT actual text
) LANGUAGE plpgsql AS $$
DECLARE
    kind text := CASE WHEN total = 10000000000 THEN '(read-write lock)' ELSE '(semaphore)' END;
    lasts interval := make_interval(secs => seconds);
    ends timestamptz;
    taken numeric;
    others boolean;
    granted bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(claimant, 0)), set_config('lock_timeout', '20ms', true);
    SELECT l.actual, l.ends INTO actual, ends FROM distributed_lock_row(of_key, kind) AS l;
    IF actual IS DISTINCT FROM kind THEN
        IF ends > clock_timestamp() THEN
            outcome := 'FORMAT';
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
        -- It stays taken while a transaction is open that has verified it.
        PERFORM FROM distributed_locks AS l WHERE l.key = of_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            outcome := 'BUSY';
            rest := 0.1;
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
        UPDATE distributed_locks AS l SET owner = kind, until = clock_timestamp() WHERE l.key = of_key;
        -- Those who wait for another kind get its error with their next attempt.
        DELETE FROM distributed_lock_claims AS c
        WHERE c.key = of_key AND c.ticket IS NOT NULL AND (c.capacity = 0 OR (c.capacity = 10000000000) <> (total = 10000000000));
    END IF;
    UPDATE distributed_lock_claims AS c SET until = clock_timestamp() + interval '5 s'
    WHERE c.key = of_key AND c.owner = claimant AND c.ticket IS NOT NULL AND c.until > clock_timestamp();
    granted := distributed_lock_settle(of_key, claimant);
    -- A late attempt must not shorten a lease that was extended since, nor undo a change of the mode.
    UPDATE distributed_lock_claims AS c SET until = greatest(c.until, clock_timestamp() + lasts)
    WHERE c.key = of_key AND c.owner = claimant AND c.ticket IS NULL;
    IF FOUND THEN
        outcome := 'GRANTED';
    ELSE
        SELECT coalesce(sum(c.shares), 0), min(c.until), max(c.capacity) FILTER (WHERE c.capacity <> total)
        INTO taken, ends, other FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NULL;
        others := EXISTS (
            SELECT FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NOT NULL AND c.capacity > 0
        );
        IF NOT others AND taken + wanted <= total THEN
            INSERT INTO distributed_lock_claims (key, owner, shares, capacity, term, until)
            VALUES (of_key, claimant, wanted, total, least(seconds, 3), clock_timestamp() + lasts);
            outcome := 'GRANTED';
        END IF;
    END IF;
    IF outcome = 'GRANTED' THEN
        -- Three times as long, so that a renewal that cannot lock the row does not have to.
        UPDATE distributed_locks AS l SET until = greatest(l.until, clock_timestamp() + 3 * lasts) WHERE l.key = of_key;
        IF wanted = total THEN
            -- Drawn when the lock already belongs to the owner.
            fence := nextval('distributed_lock_fences');
        END IF;
        RETURN;
    END IF;
    rest := greatest(extract(epoch FROM ends - clock_timestamp()), 0.001);
    IF waits THEN
        INSERT INTO distributed_lock_claims AS c (key, owner, shares, capacity, ticket, term, until)
        VALUES (
            of_key, claimant, wanted, total, nextval('distributed_lock_fences'), least(seconds, 3),
            clock_timestamp() + interval '5 s'
        )
        ON CONFLICT (key, owner) DO UPDATE SET until = excluded.until
        RETURNING c.ticket INTO place;
        ahead := (SELECT count(*) FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket < place);
        outcome := 'QUEUED';
    ELSE
        outcome := 'BUSY';
    END IF;
    IF granted = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Ends the hold of an owner, and its claim. Its shares stay taken for `keep` seconds. Outcomes:
--   FREED       `woken` is 1 if others wait
--   GONE        the owner does not have the lock
--   TAKEN       the same, and others have its shares
--   VERIFIED    a transaction is open that has verified the hold
--   ACQUIRING   an attempt of the owner is not committed
CREATE OR REPLACE FUNCTION distributed_lock_leave(
    of_key bytea, leaver text, keep float8, wanted bigint, total bigint, OUT outcome text, OUT woken bigint
) LANGUAGE plpgsql AS $$
DECLARE
    kind text := CASE WHEN total = 10000000000 THEN '(read-write lock)' ELSE '(semaphore)' END;
    stays interval := make_interval(secs => keep);
    own distributed_lock_claims%ROWTYPE;
    had boolean := false;
    actual text;
    ends timestamptz;
    taken numeric;
    granted bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(leaver, 0)) THEN
        outcome := 'ACQUIRING';
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    -- On another level of isolation, a claim that was just made is not seen, but its change of the row is an error.
    IF EXISTS (SELECT FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.owner = leaver)
        OR current_setting('transaction_isolation') NOT LIKE 'read %'
    THEN
        SELECT l.actual, l.ends INTO actual, ends FROM distributed_lock_row(of_key, kind) AS l;
        -- Waits for a renewal.
        SELECT * INTO own FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.owner = leaver FOR NO KEY UPDATE;
        had := FOUND AND actual IS NOT DISTINCT FROM kind AND own.ticket IS NULL AND own.until > clock_timestamp();
        PERFORM FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.owner = leaver FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND own.owner IS NOT NULL THEN
            outcome := CASE WHEN had THEN 'VERIFIED' ELSE 'GONE' END;
            RETURN;
        END IF;
        IF had AND keep > 0 THEN
            -- Another name, so that no renewal in flight extends it.
            UPDATE distributed_lock_claims AS c SET owner = 'kept:' || leaver, until = clock_timestamp() + stays
            WHERE c.key = of_key AND c.owner = leaver;
            UPDATE distributed_locks AS l SET until = greatest(l.until, clock_timestamp() + stays) WHERE l.key = of_key;
            outcome := 'FREED';
            woken := 0;
            RETURN;
        END IF;
        DELETE FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.owner = leaver;
        IF actual = kind THEN
            granted := distributed_lock_settle(of_key, '');
            IF NOT EXISTS (SELECT FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NULL) THEN
                PERFORM FROM distributed_locks AS l WHERE l.key = of_key FOR UPDATE SKIP LOCKED;
                IF FOUND THEN
                    DELETE FROM distributed_locks AS l WHERE l.key = of_key;
                ELSE
                    -- A transaction is open that has looked for a hold in vain.
                    UPDATE distributed_locks AS l SET until = clock_timestamp() WHERE l.key = of_key;
                END IF;
            END IF;
        END IF;
    END IF;
    SELECT sum(c.shares) INTO taken FROM distributed_lock_claims AS c
    WHERE c.key = of_key AND c.ticket IS NULL AND c.until > clock_timestamp();
    IF had THEN
        outcome := 'FREED';
        woken := EXISTS (SELECT FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NOT NULL)::int;
        woken := greatest(woken, least(granted, 1));
    ELSIF taken + wanted > total OR EXISTS (
        SELECT FROM distributed_locks AS l
        WHERE l.key = of_key AND l.owner IS DISTINCT FROM kind AND l.until > clock_timestamp()
    ) THEN
        outcome := 'TAKEN';
    ELSE
        outcome := 'GONE';
    END IF;
    -- A release that a crash forgets leaves the lock taken until its lease ends, which is a minute at most then, and the key of
    -- this kind for three times as long.
    IF granted = 0 AND (ends IS NULL OR ends < clock_timestamp() + interval '3 minutes' AND (
        own.until IS NULL OR own.until < clock_timestamp() + interval '1 minute'
    )) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Gives the owner of a read-write lock this number of shares. Outcomes:
--   DONE    it has them
--   BUSY    there are other readers, or a claim waits; nothing was changed
--   GONE    the owner does not have the lock
--   TAKEN   the same, and a writer has it
CREATE OR REPLACE FUNCTION distributed_lock_change(of_key bytea, changer text, wanted bigint, OUT outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    own distributed_lock_claims%ROWTYPE;
    taken numeric;
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    -- On another level of isolation, others fail because of the change.
    UPDATE distributed_locks AS l SET until = until WHERE l.key = of_key AND l.owner = '(read-write lock)';
    IF FOUND THEN
        SELECT * INTO own FROM distributed_lock_claims AS c
        WHERE c.key = of_key AND c.owner = changer AND c.ticket IS NULL AND c.until > clock_timestamp() FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        SELECT sum(c.shares) INTO taken FROM distributed_lock_claims AS c
        WHERE c.key = of_key AND c.ticket IS NULL AND c.until > clock_timestamp();
        outcome := CASE WHEN taken + wanted > 10000000000 OR EXISTS (
            SELECT FROM distributed_locks AS l
            WHERE l.key = of_key AND l.owner IS DISTINCT FROM '(read-write lock)' AND l.until > clock_timestamp()
        ) THEN 'TAKEN' ELSE 'GONE' END;
        RETURN;
    END IF;
    IF wanted > own.shares THEN
        PERFORM distributed_lock_settle(of_key, '');
        SELECT sum(c.shares) INTO taken FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NULL;
        IF taken - own.shares + wanted > own.capacity
            OR EXISTS (SELECT FROM distributed_lock_claims AS c WHERE c.key = of_key AND c.ticket IS NOT NULL)
        THEN
            outcome := 'BUSY';
            RETURN;
        END IF;
    END IF;
    UPDATE distributed_lock_claims AS c SET shares = wanted WHERE c.key = of_key AND c.owner = changer;
    IF NOT FOUND THEN
        outcome := 'GONE';
        RETURN;
    END IF;
    IF wanted < own.shares THEN
        PERFORM distributed_lock_settle(of_key, '');
    END IF;
    outcome := 'DONE';
END
$$;

-- Whether the owner of a key has it now, and keeps it until the transaction ends: HELD, GONE, or TAKEN by another owner.
CREATE OR REPLACE FUNCTION distributed_lock_hold(of_key bytea, claimant text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM FROM distributed_locks WHERE key = of_key AND owner = claimant AND until > clock_timestamp() FOR NO KEY UPDATE;
    IF FOUND THEN
        RETURN 'HELD';
    END IF;
    IF EXISTS (SELECT FROM distributed_locks WHERE key = of_key AND until > clock_timestamp() AND owner IS DISTINCT FROM claimant) THEN
        RETURN 'TAKEN';
    END IF;
    RETURN 'GONE';
END
$$;

-- Records the beginning of a run of the owner of a key, unless there was one in this period of `every` ms. Outcomes:
--   STARTED       it begins at this time, in ms since 1970; or has begun then, if this is the first such request of the run
--   RAN           there was a run in this period, which ends in so many ms
--   GONE, TAKEN   the owner does not have the key, or the start was undone
CREATE OR REPLACE FUNCTION distributed_lock_start_run(
    of_key bytea, runner text, every bigint, counts_anyway boolean, request int, by text, keep float8,
    OUT outcome text, OUT at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    last distributed_lock_records%ROWTYPE;
    now_ms bigint;
    first bigint;
BEGIN
    outcome := distributed_lock_hold(of_key, runner);
    IF outcome <> 'HELD' THEN
        RETURN;
    END IF;
    SELECT * INTO last FROM distributed_lock_records AS r WHERE r.key = of_key AND r.kind = 'run' AND r.until > clock_timestamp();
    -- The request has come after its undo.
    IF last.undone = runner THEN
        outcome := 'TAKEN';
        RETURN;
    END IF;
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    first := now_ms - now_ms % every;
    -- If the period has ended since the first request of the run, the run begins in the next one. An earlier request that
    -- arrives late changes nothing, because its body may have begun.
    IF last.owner = runner THEN
        IF last.began >= first OR request <= last.attempt THEN
            UPDATE distributed_lock_records AS r SET attempt = greatest(r.attempt, request)
            WHERE r.key = of_key AND r.kind = 'run';
            outcome := 'STARTED';
            at := last.began;
            RETURN;
        END IF;
    -- A run of the next period counts as well: the clock has been set back since.
    ELSIF last.counts AND last.began >= first AND last.began < first + 2 * every THEN
        outcome := 'RAN';
        at := last.began - last.began % every + every - now_ms;
        RETURN;
    END IF;
    INSERT INTO distributed_lock_records AS r (key, kind, owner, content, began, counts, attempt, until)
    VALUES (of_key, 'run', runner, by, now_ms, counts_anyway, request, clock_timestamp() + make_interval(secs => keep))
    ON CONFLICT (key, kind) DO UPDATE SET
        owner = excluded.owner, content = excluded.content, began = excluded.began, ended = NULL, failed = NULL,
        counts = excluded.counts, attempt = excluded.attempt, undone = r.undone, until = excluded.until;
    outcome := 'STARTED';
    at := now_ms;
END
$$;

-- Records the end of a run of the owner of a key, or without a time of its beginning, that its body has not begun. The outcome is
-- RECORDED, GONE or TAKEN.
CREATE OR REPLACE FUNCTION distributed_lock_end_run(
    of_key bytea, runner text, began_at bigint, counts_now boolean, has_failed boolean, by text, keep float8, OUT outcome text
) LANGUAGE plpgsql AS $$
BEGIN
    outcome := distributed_lock_hold(of_key, runner);
    IF outcome <> 'HELD' THEN
        RETURN;
    END IF;
    outcome := 'RECORDED';
    IF began_at IS NULL THEN
        -- A start that comes later has no effect.
        INSERT INTO distributed_lock_records AS r (key, kind, undone, until)
        VALUES (of_key, 'run', runner, clock_timestamp() + make_interval(secs => keep))
        ON CONFLICT (key, kind) DO UPDATE SET
            undone = excluded.undone, counts = CASE WHEN r.owner = runner THEN false ELSE r.counts END;
        RETURN;
    END IF;
    INSERT INTO distributed_lock_records AS r (key, kind, owner, content, began, ended, failed, counts, until)
    VALUES (
        of_key, 'run', runner, by, began_at, floor(extract(epoch FROM clock_timestamp()) * 1000), has_failed, counts_now,
        clock_timestamp() + make_interval(secs => keep)
    )
    ON CONFLICT (key, kind) DO UPDATE SET
        owner = excluded.owner, content = excluded.content, began = excluded.began, ended = excluded.ended,
        failed = excluded.failed, counts = excluded.counts, until = excluded.until;
END
$$;

-- Keeps what the owner of a key announces. The outcome is DONE, GONE or TAKEN.
CREATE OR REPLACE FUNCTION distributed_lock_announce(of_key bytea, announcer text, said text, keep float8, OUT outcome text)
LANGUAGE plpgsql AS $$
BEGIN
    outcome := distributed_lock_hold(of_key, announcer);
    IF outcome = 'HELD' THEN
        INSERT INTO distributed_lock_records AS r (key, kind, owner, content, until)
        VALUES (of_key, 'announcement', announcer, said, clock_timestamp() + make_interval(secs => keep))
        ON CONFLICT (key, kind) DO UPDATE SET owner = excluded.owner, content = excluded.content, until = excluded.until;
        outcome := 'DONE';
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
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_lock_claims TO app;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_lock_records TO app;
-- GRANT USAGE, UPDATE, SELECT ON distributed_lock_fences TO app;
