//! The pieces of the statements that belong to safeguards.

/// A statement, without what belongs to safeguards that are off.
#[cfg(not(lock_controls))]
pub(super) const fn guarded(statement: &'static str) -> &'static str {
    statement
}

/// Whether all safeguards of a statement are on.
#[cfg(not(lock_controls))]
pub(super) const fn is_whole(_: &'static str) -> bool {
    true
}

#[cfg(lock_controls)]
pub(super) use self::replaced::guarded;

#[cfg(lock_controls)]
pub(super) fn is_whole(statement: &'static str) -> bool {
    guarded(statement) == statement
}

#[cfg(lock_controls)]
mod replaced {
    use lock_core::safeguard::Safeguard;

    /// Pieces of the statements, and what replaces them when their safeguards are off.
    pub(super) const SWITCHES: [(Safeguard, &str, &str); 10] = {
        use Safeguard::{
            AttemptsDoNotShorten, FenceAboveLast, GrantsAreFlushed, OnlyIfFree, OnlyOwnerReleases,
            OnlyOwnerRenews, VerifiedRowsAreLocked,
        };
        [
            (GrantsAreFlushed, " WHERE NOT EXISTS (SELECT FROM taken))", ")"),
            (OnlyIfFree, "AND NOT EXISTS (SELECT FROM found)", ""),
            (
                OnlyIfFree,
                "AND NOT EXISTS (SELECT FROM found WHERE found.number = asked.number)",
                "",
            ),
            (
                OnlyIfFree,
                "ON CONFLICT (key) DO NOTHING",
                "ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until",
            ),
            (AttemptsDoNotShorten, "greatest(l.until, clock_timestamp()", "(clock_timestamp()"),
            (OnlyOwnerRenews, "l.owner = a.owner AND", ""),
            (OnlyOwnerReleases, "WHERE key = $1 AND owner = $2", "WHERE key = $1"),
            (OnlyOwnerReleases, "key = a.key AND owner = a.owner", "key = a.key"),
            (
                FenceAboveLast,
                "RETURNING nextval('distributed_lock_fences') AS fence",
                "RETURNING l.fence",
            ),
            (VerifiedRowsAreLocked, " FOR KEY SHARE", ""),
        ]
    };

    /// A control runs one test in its process, so what is leaked is little.
    pub(crate) fn guarded(statement: &'static str) -> &'static str {
        let mut text = statement.to_owned();
        for (safeguard, with, without) in SWITCHES {
            if !safeguard.is_on() {
                text = text.replace(with, without);
            }
        }
        if text == statement { statement } else { text.leak() }
    }
}

/// A control has no effect if the statements no longer contain the piece that it replaces.
#[cfg(all(test, lock_controls))]
#[test]
fn the_pieces_that_controls_replace_exist() {
    use super::statements::{
        ACQUIRE_ALL_FREE, ACQUIRE_FREE, RELEASE_ALL_IDLE, RELEASE_IDLE, RENEW, VERIFY,
    };

    for (_, with, _) in replaced::SWITCHES {
        let mut statements =
            [ACQUIRE_FREE, ACQUIRE_ALL_FREE, RELEASE_IDLE, RELEASE_ALL_IDLE, RENEW, VERIFY]
                .into_iter();
        assert!(statements.any(|statement| statement.contains(with)), "{with}");
    }
}
