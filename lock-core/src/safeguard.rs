//! The safeguards that the promises depend on, each with a name and a switch.
//!
//! The switches are for the negative controls of the fault suite. In a build with `--cfg
//! lock_controls`, a process runs without the safeguards that the environment variable
//! `LOCK_WITHOUT` names, separated by `+`. The tests of these safeguards then have to fail. In
//! every other build, all switches are on; they are constants, and cost nothing.

/// Declares the safeguards with their names.
macro_rules! safeguards {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        // The safeguards of the Lua scripts are used only in builds with switches.
        #[cfg_attr(not(lock_controls), allow(dead_code))]
        pub enum Safeguard {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Safeguard {
            #[cfg(lock_controls)]
            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

safeguards! {
    /// A body is not polled after its deadline, and is dropped when its lock is lost.
    CheckBeforePoll = "check-before-poll",
    /// A deadline counts from just before the request is sent. An answer after the deadline does
    /// not count as a grant.
    DeadlineFromSending = "deadline-from-sending",
    /// A request without an answer does not count as a grant.
    UnknownIsNotHeld = "unknown-is-not-held",
    /// An unavailable store is not reported as a busy lock.
    UnavailableIsNotBusy = "unavailable-is-not-busy",
    /// A request without an answer is undone.
    Undo = "undo",
    /// All attempts of one acquisition use one owner id.
    OneOwnerId = "one-owner-id",
    /// Dropping a guard releases the lock.
    ReleaseOnDrop = "release-on-drop",
    /// A release that is dropped, or gets no answer, continues in the background.
    ReleaseContinues = "release-continues",
    /// A lock is granted only if its key is free.
    OnlyIfFree = "only-if-free",
    /// A lock is created with an expiry.
    Expiry = "expiry",
    /// Only the owner can release a lock.
    OnlyOwnerReleases = "only-owner-releases",
    /// Only the owner can renew a lock.
    OnlyOwnerRenews = "only-owner-renews",
    /// A renewal does not create a lock that no longer exists.
    RenewalNeverRecreates = "renewal-never-recreates",
    /// A late attempt of an acquisition, or a late renewal, does not shorten the lease.
    AttemptsDoNotShorten = "attempts-do-not-shorten",
    /// A reader that comes while a writer waits, waits behind it.
    ReadersWaitForWriters = "readers-wait-for-writers",
    /// A hold whose downgrade may arrive late does not become that of a writer again.
    LateDowngradesCount = "late-downgrades-count",
    /// Permits go to the first call that waits, however many it wants.
    PermitsInOrder = "permits-in-order",
    /// Locks are renewed.
    Renewal = "renewal",
    /// Renewals run on a thread of their own.
    BackgroundThread = "background-thread",
    /// Waiting acquisitions also wake up without a message.
    SafetyPoll = "safety-poll",
    /// Errors are classified by their kind.
    ErrorKinds = "error-kinds",
    /// The credentials in the URL are not shown.
    SecretsAreHidden = "secrets-are-hidden",
    /// A process hands a lock off among its own tasks for a limited time if other processes wait.
    HandoffLimit = "handoff-limit",
    /// A lock that is handed off to a waiter that gives up goes to the next waiter, or is released.
    HandoffContinues = "hand-off-continues",
    /// A hand-off does not extend the deadline of a lock.
    HandoffKeepsDeadline = "hand-off-keeps-deadline",
    /// The key of a lost lock is not freed before the body is dropped.
    KeyOutlivesBody = "key-outlives-body",
    /// A call that waits for the store and is not polled does not block other calls.
    UnpolledCallsDoNotBlock = "unpolled-calls-do-not-block",
    /// An acquire that ends after the release of its owner frees the key.
    LateAcquiresAreReleased = "late-acquires-are-released",
    /// A fencing token is higher than the last one.
    FenceAboveLast = "fence-above-last",
    /// All held locks are verified after a failover.
    HoldsAreVerified = "holds-are-verified",
    /// A grant counts only if the required replicas have acknowledged it.
    GrantsAreAcknowledged = "grants-are-acknowledged",
    /// A renewal counts only if the required replicas have acknowledged it.
    RenewalsAreAcknowledged = "renewals-are-acknowledged",
    /// An acknowledgement counts only if it comes over the connection that was open before the
    /// request, from the server that has answered the request.
    OneServerAcknowledges = "one-server-acknowledges",
    /// A server that may have lost locks grants none until they have ended.
    Quarantine = "quarantine",
    /// A lock that was given to a claim in a queue counts from the last request that has confirmed
    /// the place of the claim.
    TransfersCountFromConfirmation = "transfers-count-from-confirmation",
    /// A message about an earlier stay in a queue does not count.
    TicketsAreCompared = "tickets-are-compared",
    /// A claim whose client cannot be reached is passed over.
    UnreachableArePassedOver = "unreachable-are-passed-over",
    /// A run counts for its period before its body begins.
    RunsCountFromTheirStart = "runs-count-from-their-start",
    /// The server reports when another client changes a key.
    Tracking = "tracking",
    /// A quorum grants a lock only if a majority of its stores has granted it.
    MajorityGrants = "majority-grants",
    /// A quorum renews a lock only if a majority of its stores has renewed it.
    MajorityRenews = "majority-renews",
    /// The votes that stores of a quorum may have are released when these stores answer again.
    ResidualVotesAreFreed = "residual-votes-are-freed",
    /// The keys that may be left in etcd after a request without an answer are deleted when it answers again.
    LeftoversAreFreed = "leftovers-are-freed",
    /// A fencing token is written to a majority of a quorum before it is used.
    FenceIsWrittenBack = "fence-is-written-back",
    /// An extension of a lease of etcd counts only if no other leader has taken over meanwhile.
    ExtensionsAreConfirmed = "extensions-are-confirmed",
    /// PostgreSQL answers a request that grants a lock only when the grant is on its disk.
    GrantsAreFlushed = "grants-are-flushed",
    /// A transaction that has verified a lock in PostgreSQL keeps others from taking it over.
    VerifiedRowsAreLocked = "verified-rows-are-locked",
}

impl Safeguard {
    #[cfg(not(lock_controls))]
    #[inline]
    #[allow(clippy::unused_self)]
    pub const fn is_on(self) -> bool {
        true
    }

    #[cfg(lock_controls)]
    pub fn is_on(self) -> bool {
        use std::sync::LazyLock;

        static WITHOUT: LazyLock<Option<String>> =
            LazyLock::new(|| std::env::var("LOCK_WITHOUT").ok());
        let mut without = WITHOUT.iter().flat_map(|names| names.split('+'));
        !without.any(|name| name == self.name())
    }
}

/// Runs a test of this library in a process without a safeguard, and asserts that it fails with output that contains `seen`.
#[cfg(lock_controls)]
pub fn assert_fails_without(safeguard: &str, test: &str, seen: &str) {
    let mut program = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = program.args(["--exact", test, "--nocapture"]).env("LOCK_WITHOUT", safeguard);
    let output = output.output().expect("a child process");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains("running 1 test"), "there is no test {test}");
    assert!(!output.status.success(), "{test} passes without {safeguard}");
    assert!(printed.contains(seen), "{test} fails for another reason: {printed}");
}
