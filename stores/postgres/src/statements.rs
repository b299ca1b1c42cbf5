//! The statements. Each is one transaction, and reads the clock of the server.
//!
//! A commit waits until it is on the disk, and on the synchronous standby, because a grant or a renewal that a crash or a
//! failover loses gives the key to two owners. What only frees a key, or marks it, does not wait: when it is lost, the key
//! stays taken until its lease ends, as after the death of its holder. Nobody has got the key in between, because the commit
//! of the next grant also waits for everything before it.
//!
//! A statement does not wait for the locks of other sessions for more than 200 ms, because other statements wait behind
//! it. It is executed again then, as long as its request lasts.

use tokio_postgres::types::Type;

/// The holders of the keys in `l`, in their order.
macro_rules! holders {
    () => {
        "\
SELECT
    coalesce(c.owner, l.owner),
    CASE WHEN isfinite(coalesce(c.until, l.until))
        THEN extract(epoch FROM coalesce(c.until, l.until) - clock_timestamp())::float8 END,
    l.key, c.shares, c.capacity
FROM l LEFT JOIN distributed_lock_claims AS c
    ON l.owner LIKE '(%' AND c.key = l.key AND c.ticket IS NULL AND c.until > clock_timestamp()
ORDER BY l.key, c.until"
    };
}

/// Sent before a statement is prepared. The plan of a prepared statement is kept, and while the table is small, that would be
/// to read all of it. On another level of isolation, a statement fails if others change its rows.
pub(super) const SESSION: &str =
    "SET enable_seqscan = off; SET default_transaction_isolation = 'read committed'";

/// A statement about locks, which connections to the server itself prepare when they first use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockStatement {
    AcquireFree,
    AcquireAllFree,
    Acquire,
    Renew,
    ReleaseIdle,
    ReleaseAllIdle,
    Release,
    Fence,
    Claim,
    RenewClaims,
    Leave,
    Change,
    FenceWriter,
}

impl LockStatement {
    /// The number of these statements.
    pub(super) const COUNT: usize = 13;

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::AcquireFree => ACQUIRE_FREE,
            Self::AcquireAllFree => ACQUIRE_ALL_FREE,
            Self::Acquire => ACQUIRE,
            Self::Renew => RENEW,
            Self::ReleaseIdle => RELEASE_IDLE,
            Self::ReleaseAllIdle => RELEASE_ALL_IDLE,
            Self::Release => RELEASE,
            Self::Fence => FENCE,
            Self::Claim => CLAIM,
            Self::RenewClaims => RENEW_CLAIMS,
            Self::Leave => LEAVE,
            Self::Change => CHANGE,
            Self::FenceWriter => FENCE_WRITER,
        }
    }

    /// Whether it is about several locks.
    pub(super) const fn is_about_several(self) -> bool {
        matches!(
            self,
            Self::AcquireAllFree | Self::Renew | Self::ReleaseAllIdle | Self::RenewClaims
        )
    }

    /// The types of its parameters: of a key, an owner, a time, a number of shares and their capacity, or of several of each.
    pub(super) const fn types(self) -> &'static [Type] {
        match self {
            Self::AcquireFree | Self::Release => &[Type::BYTEA, Type::TEXT, Type::FLOAT8],
            Self::Acquire => &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::BOOL],
            Self::AcquireAllFree | Self::Renew => {
                &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY, Type::FLOAT8_ARRAY]
            }
            Self::ReleaseIdle | Self::Fence | Self::FenceWriter => &[Type::BYTEA, Type::TEXT],
            Self::Claim => {
                &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::INT8, Type::INT8, Type::BOOL]
            }
            Self::RenewClaims => &[
                Type::BYTEA_ARRAY,
                Type::TEXT_ARRAY,
                Type::FLOAT8_ARRAY,
                Type::INT8_ARRAY,
                Type::INT8_ARRAY,
            ],
            Self::Leave => &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::INT8, Type::INT8],
            Self::Change => &[Type::BYTEA, Type::TEXT, Type::INT8],
            Self::ReleaseAllIdle => &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY],
        }
    }
}

/// Key, owner and term in seconds. One row: the fencing token if the owner has got the key, the rest of the lease in seconds if
/// another owner has it, and that owner if it is a kind of lock.
///
/// This is a part of [`ACQUIRE`], which costs less, and neither marks a key nor takes over a row. If there is neither a token
/// nor a rest, [`ACQUIRE`] is necessary: there is a row, but not the lease of another owner. An insertion would wait for
/// whoever takes that row over.
///
/// The last column is never read.
pub(super) const ACQUIRE_FREE: &str = "\
WITH begun AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(hashtextextended($2, 0)), set_config('lock_timeout', '200ms', true)
), found AS (
    SELECT owner, until, until > clock_timestamp() AND owner IS DISTINCT FROM $2 AS busy FROM distributed_locks WHERE key = $1
), taken AS (
    INSERT INTO distributed_locks AS l (key, owner, until, fence)
    SELECT $1, $2, clock_timestamp() + make_interval(secs => $3), nextval('distributed_lock_fences')
    WHERE (SELECT count(*) FROM begun) = 1
        AND NOT EXISTS (SELECT FROM found)
    ON CONFLICT (key) DO NOTHING
    RETURNING nextval('distributed_lock_fences') AS fence
)
SELECT
    (SELECT fence FROM taken),
    (SELECT extract(epoch FROM until - clock_timestamp())::float8 FROM found WHERE busy),
    (SELECT owner FROM found WHERE busy AND owner LIKE '(%'),
    (SELECT set_config('synchronous_commit', 'off', true) WHERE NOT EXISTS (SELECT FROM taken))";

/// Keys, owners and terms in seconds. One row for each, in their order, as that of [`ACQUIRE_FREE`]. Each key is looked up on
/// its own: a plan that is made for a small table would read all of it otherwise, and is kept.
///
/// An insertion waits for a transaction that inserts or deletes a row with the same key. Because all of them insert their rows in the
/// order of the keys, none of those waits for this one. If it waits for another session, each key is requested on its own.
pub(super) const ACQUIRE_ALL_FREE: &str = "\
WITH asked AS (
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::float8[]) WITH ORDINALITY AS a (key, owner, term, number)
), begun AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(hashtextextended(owner, 0)) FROM asked
), limited AS MATERIALIZED (
    SELECT set_config('lock_timeout', '200ms', true)
), found AS MATERIALIZED (
    SELECT a.number, l.owner AS holder, l.until, l.until > clock_timestamp() AND l.owner IS DISTINCT FROM a.owner AS busy
    FROM asked AS a CROSS JOIN LATERAL (SELECT until, owner FROM distributed_locks WHERE key = a.key LIMIT 1) AS l
), taken AS (
    INSERT INTO distributed_locks AS l (key, owner, until, fence)
    SELECT key, owner, clock_timestamp() + make_interval(secs => term), nextval('distributed_lock_fences')
    FROM asked
    WHERE (SELECT count(*) FROM begun, limited) > 0
        AND NOT EXISTS (SELECT FROM found WHERE found.number = asked.number)
    ORDER BY key
    ON CONFLICT (key) DO NOTHING
    RETURNING nextval('distributed_lock_fences') AS fence, owner
)
SELECT
    taken.fence,
    CASE WHEN found.busy THEN extract(epoch FROM found.until - clock_timestamp())::float8 END,
    CASE WHEN found.busy AND found.holder LIKE '(%' THEN found.holder END,
    (SELECT set_config('synchronous_commit', 'off', true) WHERE NOT EXISTS (SELECT FROM taken))
FROM asked
LEFT JOIN taken USING (owner)
LEFT JOIN found USING (number)
ORDER BY number";

/// Key, owner, term in seconds, and whether the claim waits: see `distributed_lock_acquire` in the schema.
///
/// Without a grant, the commit does not wait: a claim that is lost is made again by its next attempt.
const ACQUIRE: &str = "\
SELECT outcome, rest, place, ahead, fence, other, actual FROM distributed_lock_acquire($1, $2, $3, $4)";

/// Keys, owners and terms in seconds. One row for each, in their order: whether the lease was extended, whether another owner has
/// the key, and whether the owner has it. In the last case, the lease was not extended because another transaction has locked the row:
/// waiting for that would delay the other renewals.
pub(super) const RENEW: &str = "\
WITH asked AS (
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::float8[]) WITH ORDINALITY AS a (key, owner, term, number)
), unlocked AS MATERIALIZED (
    SELECT a.key, a.owner, a.term, a.number FROM asked AS a CROSS JOIN LATERAL (
        SELECT ctid FROM distributed_locks AS l WHERE l.key = a.key AND l.owner = a.owner AND l.until > clock_timestamp()
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) AS it
), extended AS (
    UPDATE distributed_locks AS l SET until = greatest(l.until, clock_timestamp() + make_interval(secs => a.term))
    FROM unlocked AS a
    WHERE l.key = a.key AND l.owner = a.owner AND l.until > clock_timestamp()
    RETURNING a.number
)
SELECT e.number IS NOT NULL, l.owner IS DISTINCT FROM a.owner AND l.key IS NOT NULL, l.owner IS NOT DISTINCT FROM a.owner
FROM asked AS a
LEFT JOIN extended AS e USING (number)
LEFT JOIN distributed_locks AS l ON l.key = a.key AND l.until > clock_timestamp()
ORDER BY number";

/// Key and owner. A row if the key was freed: whether the lease had not ended. Otherwise there is none, and [`RELEASE`] is
/// necessary: the owner does not have the key, others wait for it, or another transaction has locked the row, or has just changed
/// it. (In the last cases, the commit waits, although it has freed nothing.)
///
/// The last column is never read.
pub(super) const RELEASE_IDLE: &str = "\
DELETE FROM distributed_locks
WHERE ctid = (SELECT ctid FROM distributed_locks WHERE key = $1 AND owner = $2 AND NOT wanted FOR UPDATE SKIP LOCKED)
RETURNING
    until > clock_timestamp(),
    CASE WHEN until < clock_timestamp() + interval '1 minute' THEN set_config('synchronous_commit', 'off', true) END";

/// Keys and owners. One row for each, in their order, as that of [`RELEASE_IDLE`]; its columns are `NULL` where that has none.
/// The commit waits if any of the keys would stay taken for more than a minute if it were lost.
pub(super) const RELEASE_ALL_IDLE: &str = "\
WITH asked AS (
    SELECT * FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS a (key, owner, number)
), freed AS (
    DELETE FROM distributed_locks
    WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM asked AS a CROSS JOIN LATERAL (
            SELECT ctid FROM distributed_locks WHERE key = a.key AND owner = a.owner AND NOT wanted LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS l
    ))
    RETURNING owner, until
)
SELECT
    freed.until > clock_timestamp(),
    (
        SELECT set_config('synchronous_commit', 'off', true)
        WHERE NOT EXISTS (SELECT FROM freed WHERE until >= clock_timestamp() + interval '1 minute')
    )
FROM asked
LEFT JOIN freed USING (owner)
ORDER BY number";

/// Key, owner, and the time for which the key stays taken in seconds: see `distributed_lock_release`.
const RELEASE: &str = "SELECT outcome, woken FROM distributed_lock_release($1, $2, $3)";

/// Key and owner. One row: a token if the owner has the key, and whether another owner has it.
const FENCE: &str = "\
WITH limited AS MATERIALIZED (
    SELECT set_config('lock_timeout', '200ms', true)
), issued AS (
    UPDATE distributed_locks SET fence = nextval('distributed_lock_fences')
    WHERE key = $1 AND owner = $2 AND until > clock_timestamp() AND (SELECT count(*) FROM limited) > 0
    RETURNING fence
)
SELECT
    (SELECT fence FROM issued),
    EXISTS (SELECT FROM distributed_locks WHERE key = $1 AND until > clock_timestamp() AND owner IS DISTINCT FROM $2)";

/// Key, owner, term in seconds, shares, their capacity, and whether the claim waits: see `distributed_lock_claim` in the schema.
const CLAIM: &str = "\
SELECT outcome, rest, place, ahead, fence, other, actual FROM distributed_lock_claim($1, $2, $3, $4, $5, $6)";

/// Keys, owners, terms in seconds, shares and their capacities. One row for each, in their order: whether the lease was extended,
/// whether the owner has fewer shares, whether others have its shares, and whether the owner has the key. In the last case, the
/// lease was not extended because another transaction has locked its row: waiting for that would delay the other renewals.
///
/// The row of a key must not end before the leases of its holders. It is extended by three terms, so that a renewal that cannot
/// lock it, because the claims of others have locked it, goes on without.
const RENEW_CLAIMS: &str = "\
WITH asked AS (
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::float8[], $4::bigint[], $5::bigint[])
        WITH ORDINALITY AS a (key, owner, term, shares, capacity, number)
), unlocked AS MATERIALIZED (
    SELECT a.key, a.owner, a.term, a.number FROM asked AS a CROSS JOIN LATERAL (
        SELECT ctid FROM distributed_lock_claims AS c
        WHERE c.key = a.key AND c.owner = a.owner AND c.ticket IS NULL AND c.until > clock_timestamp()
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) AS it
), keys AS MATERIALIZED (
    SELECT a.key, a.term FROM (SELECT key, max(term) AS term FROM unlocked GROUP BY key) AS a CROSS JOIN LATERAL (
        SELECT ctid FROM distributed_locks WHERE key = a.key AND owner LIKE '(%' LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) AS it
), raised AS (
    UPDATE distributed_locks AS l SET until = greatest(l.until, clock_timestamp() + 3 * make_interval(secs => a.term))
    FROM keys AS a
    WHERE l.key = a.key AND l.owner LIKE '(%'
    RETURNING l.key
), extended AS (
    UPDATE distributed_lock_claims AS c
    SET until = greatest(c.until, clock_timestamp() + make_interval(secs => a.term))
    FROM unlocked AS a
    WHERE c.key = a.key AND c.owner = a.owner AND c.ticket IS NULL AND c.until > clock_timestamp()
        AND (
            EXISTS (SELECT FROM raised AS r WHERE r.key = a.key)
            OR EXISTS (
                SELECT FROM distributed_locks AS l
                WHERE l.key = a.key AND l.owner LIKE '(%'
                    AND l.until >= clock_timestamp() + make_interval(secs => a.term)
            )
        )
    RETURNING a.number, c.shares
)
SELECT
    e.number IS NOT NULL,
    coalesce(e.shares < a.shares, false),
    EXISTS (
        SELECT FROM distributed_locks AS l
        WHERE l.key = a.key AND l.until > clock_timestamp() AND (l.owner IS NULL OR l.owner NOT LIKE '(%')
    ) OR c.key IS NULL AND coalesce((
        SELECT sum(o.shares) FROM distributed_lock_claims AS o
        WHERE o.key = a.key AND o.ticket IS NULL AND o.until > clock_timestamp()
    ), 0) + a.shares > a.capacity,
    c.key IS NOT NULL AND EXISTS (SELECT FROM distributed_locks AS l WHERE l.key = a.key AND l.owner LIKE '(%')
FROM asked AS a
LEFT JOIN extended AS e USING (number)
LEFT JOIN distributed_lock_claims AS c
    ON c.key = a.key AND c.owner = a.owner AND c.ticket IS NULL AND c.until > clock_timestamp()
ORDER BY number";

/// Key, owner, the time for which its shares stay taken in seconds, shares and their capacity: see `distributed_lock_leave`.
const LEAVE: &str = "SELECT outcome, woken FROM distributed_lock_leave($1, $2, $3, $4, $5)";

/// Key, owner and shares: see `distributed_lock_change`.
const CHANGE: &str = "SELECT outcome FROM distributed_lock_change($1, $2, $3)";

/// Key and owner of a read-write lock. One row: a token if the owner is a writer, whether it is a reader, and whether others have
/// the key. While the row of the key is locked, nobody else gets it.
const FENCE_WRITER: &str = "\
WITH limited AS MATERIALIZED (
    SELECT set_config('lock_timeout', '200ms', true)
), locked AS MATERIALIZED (
    SELECT key FROM distributed_locks WHERE key = $1 AND owner LIKE '(%' AND (SELECT count(*) FROM limited) > 0 FOR NO KEY UPDATE
), own AS MATERIALIZED (
    SELECT shares = capacity AS writes FROM distributed_lock_claims
    WHERE key = $1 AND owner = $2 AND ticket IS NULL AND until > clock_timestamp() AND EXISTS (SELECT FROM locked)
    FOR NO KEY UPDATE
), issued AS (
    UPDATE distributed_locks SET fence = nextval('distributed_lock_fences')
    WHERE key = $1 AND EXISTS (SELECT FROM own WHERE writes)
    RETURNING fence
)
SELECT
    (SELECT fence FROM issued),
    EXISTS (SELECT FROM own WHERE NOT writes),
    EXISTS (SELECT FROM distributed_locks WHERE key = $1 AND until > clock_timestamp())";

/// Makes all later tokens higher than this one. Several statements, in one transaction.
///
/// `setval` overwrites what others have drawn since the value was read. So the lock on the table waits for all who may
/// be drawing, and keeps others from it: each of them changes the table. Transactions that have verified a lock do not.
pub(super) fn raise_fences(at_least: i64) -> String {
    // All other requests wait behind the lock.
    format!(
        "SELECT set_config('lock_timeout', '1s', true); LOCK TABLE distributed_locks IN SHARE ROW EXCLUSIVE MODE; \
         SELECT setval('distributed_lock_fences', {at_least}) \
         FROM distributed_lock_fences WHERE last_value < {at_least}"
    )
}

/// Key. One row for each holder: its token, the rest of its lease, the key, and its shares and their capacity, or `NULL`. Only
/// after `kept:` is the token that of an owner who had shares. A lock whose last holder has just ended has a row without shares.
pub(super) const INSPECT: &str = concat!(
    "WITH l AS (SELECT * FROM distributed_locks WHERE key = $1 AND until > clock_timestamp()) ",
    holders!()
);

/// The first key, the first one behind those that are wanted, or `NULL`, and a number of keys. As [`INSPECT`], in the order of
/// the keys.
pub(super) const SCAN: &str = concat!(
    "WITH l AS (SELECT * FROM distributed_locks WHERE key >= $1 AND ($2 IS NULL OR key < $2) AND until > clock_timestamp() ",
    "ORDER BY key LIMIT $3) ",
    holders!()
);

/// Key, owner, period in ms, whether it counts anyway, number of the request, process, and how long the record is kept in seconds.
pub(super) const START_RUN: &str =
    "SELECT outcome, at FROM distributed_lock_start_run($1, $2, $3, $4, $5, $6, $7)";

/// Key, owner, when it began in ms or `NULL`, whether it counts, whether it has failed, process, and how long the record is kept
/// in seconds.
pub(super) const END_RUN: &str =
    "SELECT outcome FROM distributed_lock_end_run($1, $2, $3, $4, $5, $6, $7)";

/// Key. A row if there was a run: when it began and ended, whether it has failed, the process, and whether its owner has the key.
pub(super) const LAST_RUN: &str = "\
SELECT r.began, r.ended, r.failed, r.content, EXISTS (
    SELECT FROM distributed_locks AS l WHERE l.key = r.key AND l.owner = r.owner AND l.until > clock_timestamp()
)
FROM distributed_lock_records AS r
WHERE r.key = $1 AND r.kind = 'run' AND r.began IS NOT NULL AND r.until > clock_timestamp()";

/// Key, owner, text, and how long it is kept in seconds.
pub(super) const ANNOUNCE: &str = "SELECT outcome FROM distributed_lock_announce($1, $2, $3, $4)";

/// Key. A row if its holder has announced something: the text, and the rest of the lease in seconds.
pub(super) const ANNOUNCED: &str = "\
SELECT r.content, CASE WHEN isfinite(l.until) THEN extract(epoch FROM l.until - clock_timestamp())::float8 END
FROM distributed_locks AS l JOIN distributed_lock_records AS r ON r.key = l.key AND r.kind = 'announcement' AND r.owner = l.owner
WHERE l.key = $1 AND l.until > clock_timestamp()";

/// Ids of clients. The names of the connections of those that are connected, as users who may acquire locks.
pub(super) const CLIENTS: &str = "\
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND split_part(application_name, ' ', 2) = ANY ($1)
    AND has_table_privilege(usesysid, to_regclass('distributed_locks'), 'INSERT')";

/// Key and owner. A row if the owner has the key, alone or in another mode. Nobody takes it over or deletes it until the
/// transaction ends; renewals go on.
pub(super) const VERIFY: &str = "\
WITH alone AS MATERIALIZED (
    SELECT 1 FROM distributed_locks WHERE key = $1 AND owner = $2 AND until > clock_timestamp() FOR KEY SHARE
), kind AS MATERIALIZED (
    SELECT 1 FROM distributed_locks WHERE key = $1 AND owner LIKE '(%' FOR KEY SHARE
), counted AS MATERIALIZED (
    SELECT 1 FROM distributed_lock_claims
    WHERE key = $1 AND owner = $2 AND ticket IS NULL AND until > clock_timestamp() AND EXISTS (SELECT FROM kind)
    FOR KEY SHARE
)
SELECT 1 FROM alone UNION ALL SELECT 1 FROM counted";

/// Key. Whether somebody has it, and whether each statement of the transaction sees what is committed before it.
pub(super) const IS_TAKEN: &str = "\
SELECT
    EXISTS (SELECT FROM distributed_locks WHERE key = $1 AND until > clock_timestamp()),
    current_setting('transaction_isolation') LIKE 'read %'";

/// The version of the server, whether it is a standby, whether the session is read-only, whether there is a table, its comment,
/// and what it lacks.
pub(super) const CHECK: &str = "\
SELECT
    current_setting('server_version_num')::int4,
    pg_is_in_recovery(),
    current_setting('transaction_read_only')::bool,
    to_regclass('distributed_locks') IS NOT NULL,
    coalesce(obj_description(to_regclass('distributed_locks'), 'pg_class'), ''),
    coalesce((
        SELECT string_agg(part, ', ') FROM (
            SELECT 'the column ' || name || ' of the type ' || type FROM unnest(
                ARRAY['key', 'owner', 'until', 'fence', 'wanted'],
                ARRAY['bytea', 'text', 'timestamp with time zone', 'bigint', 'boolean']
            ) AS needed (name, type)
            WHERE NOT EXISTS (
                SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('distributed_locks') AND attname::text = name
                    AND atttypid = to_regtype(type) AND NOT attisdropped
            )
            UNION ALL
            SELECT 'the constraint distributed_locks_owner' WHERE NOT EXISTS (
                SELECT FROM pg_constraint
                WHERE conrelid = to_regclass('distributed_locks') AND conname = 'distributed_locks_owner' AND contype = 'u'
            )
            UNION ALL
            SELECT 'the sequence distributed_lock_fences' WHERE to_regclass('distributed_lock_fences') IS NULL
            UNION ALL
            SELECT 'the table ' || name FROM unnest(ARRAY['distributed_lock_claims', 'distributed_lock_records']) AS needed (name)
            WHERE to_regclass(name) IS NULL
            UNION ALL
            SELECT 'the function distributed_lock_' || name
            FROM unnest(ARRAY[
                'pass', 'acquire', 'release', 'settle', 'row', 'claim', 'leave', 'change', 'hold', 'start_run', 'end_run', 'announce'
            ]) AS needed (name)
            WHERE to_regproc('distributed_lock_' || name) IS NULL
        ) AS missing (part)
    ), '')";

/// One row: the process of the server in which it was executed.
pub(super) const LISTEN: &str = "LISTEN distributed_locks; SELECT pg_backend_pid()";

/// The same.
pub(super) const UNLISTEN: &str = "UNLISTEN distributed_locks; SELECT pg_backend_pid()";

/// A payload, as a notification.
pub(super) const PROBE: &str = "SELECT pg_notify('distributed_locks', $1)";
