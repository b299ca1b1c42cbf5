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
    /// Readers of one process share a hold.
    ReadersShare = "readers-share",
    /// Readers join the hold of others within the limit of hand-offs only.
    ReadersYield = "readers-yield",
    /// A reader that comes while a writer waits, waits behind it.
    ReadersWaitForWriters = "readers-wait-for-writers",
    /// When a writer ends, it is the turn of the readers.
    ReadersTakeTurns = "readers-take-turns",
    /// A server that is out of memory renews read-write locks and permits.
    RenewalsOutOfMemory = "renewals-out-of-memory",
    /// A writer that the store takes for a reader has lost the lock.
    WritersAreVerified = "writers-are-verified",
    /// A hold whose downgrade may arrive late does not become that of a writer again.
    LateDowngradesCount = "late-downgrades-count",
    /// Only the only reader becomes a writer.
    OnlyReadersUpgrade = "only-readers-upgrade",
    /// A writer in the body of a reader is an error.
    NestedWritersFail = "nested-writers-fail",
    /// Permits go to the first call that waits, however many it wants.
    PermitsInOrder = "permits-in-order",
    /// A process passes permits on among its calls without a request.
    PermitsArePassedOn = "permits-are-passed-on",
    /// Locks are renewed.
    Renewal = "renewal",
    /// A failed renewal is retried.
    RenewalRetry = "renewal-retry",
    /// No renewal is sent after the release has begun.
    ReleaseEndsRenewal = "release-ends-renewal",
    /// A key that stays taken for its minimum hold has another owner name.
    MinHoldRenamesOwner = "min-hold-renames-owner",
    /// Renewals run on a thread of their own.
    BackgroundThread = "background-thread",
    /// Waiting acquisitions also wake up without a message.
    SafetyPoll = "safety-poll",
    /// Waiting acquisitions are woken when the subscription connection is lost, and when it is
    /// back.
    ReconnectWakes = "reconnect-wakes",
    /// A script that the server does not have any more is sent as text.
    ScriptFallback = "script-fallback",
    /// Errors are classified by their kind.
    ErrorKinds = "error-kinds",
    /// The credentials in the URL are not shown.
    SecretsAreHidden = "secrets-are-hidden",
    /// A process hands a lock off among its own tasks for a limited time if other processes wait.
    HandoffLimit = "handoff-limit",
    /// A process yields to the processes that its release has woken.
    Yielding = "yielding",
    /// A lock that is handed off to a waiter that gives up goes to the next waiter, or is released.
    HandoffContinues = "hand-off-continues",
    /// A hand-off does not extend the deadline of a lock.
    HandoffKeepsDeadline = "hand-off-keeps-deadline",
    /// The key of a lost lock is not freed before the body is dropped.
    KeyOutlivesBody = "key-outlives-body",
    /// An offer that is not taken goes to the next waiters.
    OffersContinue = "offers-continue",
    /// A call that waits for the store and is not polled does not block other calls.
    UnpolledCallsDoNotBlock = "unpolled-calls-do-not-block",
    /// Requests that are not polled do not prevent others from being sent.
    PermitsExpire = "permits-expire",
    /// A request does not time out while other answers arrive on its connection.
    TimeoutOnlyIfSilent = "timeout-only-if-silent",
    /// An acquire that ends after the release of its owner frees the key.
    LateAcquiresAreReleased = "late-acquires-are-released",
    /// Each runtime has its own connections to a store.
    RuntimesAreSeparate = "runtimes-are-separate",
    /// A request on a runtime that was blocked waits a little longer for its answer.
    LateTasksLookAgain = "late-tasks-look-again",
    /// While a release is in flight, its client frees the key in no other way.
    ReleasesGoFirst = "releases-go-first",
    /// A waiting call marks the key that it waits for, so that a release knows of it.
    WaitersAreMarked = "waiters-are-marked",
    /// The permissions for requests that are sent together are checked for each of them.
    JoinedPartsAreChecked = "joined-parts-are-checked",
    /// Releases that were denied together are sent one by one.
    DeniedReleasesGoAlone = "denied-releases-go-alone",
    /// Releases that go together are sent by a task of their own.
    JoinedReleasesHaveATask = "joined-releases-have-a-task",
    /// Releases that are queued behind a request without an answer are not sent.
    QueuedReleasesFail = "queued-releases-fail",
    /// Requests about one key are not sent together.
    JoinedKeysDiffer = "joined-keys-differ",
    /// The rows of acquires that are sent together are inserted in the order of their keys.
    JoinedRowsAreOrdered = "joined-rows-are-ordered",
    /// Log events are emitted on a thread of their own.
    LogThread = "log-thread",
    /// A fencing token is higher than the last one.
    FenceAboveLast = "fence-above-last",
    /// A fencing token is at least the time of the server's clock.
    FenceAboveClock = "fence-above-clock",
    /// Only expected replies count as a grant.
    ExpectedReplies = "expected-replies",
    /// The number of requests in flight on a connection is limited.
    LimitedRequests = "limited-requests",
    /// Certificate files that have changed are read again.
    CertificatesAreReread = "certificates-are-reread",
    /// Connections log in again before their credentials end.
    CredentialsAreRenewed = "credentials-are-renewed",
    /// Channels are subscribed in chunks.
    LimitedSubscriptions = "limited-subscriptions",
    /// A client notices that the address of its only server leads to another one.
    MovedServersAreNoticed = "moved-servers-are-noticed",
    /// A client notices a failover although its connections still work.
    FailoversAreNoticed = "failovers-are-noticed",
    /// The newest configuration that sentinels, or the nodes of a cluster, have counts.
    NewestConfiguration = "newest-configuration",
    /// All held locks are verified after a failover.
    HoldsAreVerified = "holds-are-verified",
    /// The slots of a cluster are read again after a failure.
    SlotsAreRefreshed = "slots-are-refreshed",
    /// The nodes of other clusters are ignored.
    ForeignNodesAreIgnored = "foreign-nodes-are-ignored",
    /// Members of a cluster that the URL does not name are used as well.
    MembersAreLearned = "members-are-learned",
    /// All nodes of a cluster are asked for their slots at once.
    NodesAreAskedAtOnce = "nodes-are-asked-at-once",
    /// `ASKING` is sent together with its request.
    AskingInOnePiece = "asking-in-one-piece",
    /// The subscriptions to a key's releases follow its slot to another node of a cluster.
    SubscriptionsFollow = "subscriptions-follow",
    /// The renewals of each node of a cluster are sent and limited separately.
    PlacesAreSeparate = "places-are-separate",
    /// A grant counts only if the required replicas have acknowledged it.
    GrantsAreAcknowledged = "grants-are-acknowledged",
    /// A renewal counts only if the required replicas have acknowledged it.
    RenewalsAreAcknowledged = "renewals-are-acknowledged",
    /// A hand-off to a waiter that requires other replicas renews the lease.
    HandoffsAreAcknowledged = "hand-offs-are-acknowledged",
    /// An acknowledgement counts only if it comes over the connection that was open before the
    /// request, from the server that has answered the request.
    OneServerAcknowledges = "one-server-acknowledges",
    /// A server that may have lost locks grants none until they have ended.
    Quarantine = "quarantine",
    /// Releases leave gaps for clients that know no queue.
    Gaps = "gaps",
    /// A lock that was given to a claim in a queue counts from the last request that has confirmed
    /// the place of the claim.
    TransfersCountFromConfirmation = "transfers-count-from-confirmation",
    /// A message about an earlier stay in a queue does not count.
    TicketsAreCompared = "tickets-are-compared",
    /// A claim that does not wait any more leaves its queue.
    ClaimsLeave = "claims-leave",
    /// A claim whose client cannot be reached is passed over.
    UnreachableArePassedOver = "unreachable-are-passed-over",
    /// The locks of a set are taken in the order of their keys.
    SetsAreSorted = "sets-are-sorted",
    /// A run counts for its period before its body begins.
    RunsCountFromTheirStart = "runs-count-from-their-start",
    /// With `retry_failed`, a run counts only when it has succeeded.
    FailedRunsDoNotCount = "failed-runs-do-not-count",
    /// Each run has an owner id of its own, because its lock is not handed off.
    RunsHaveOwners = "runs-have-owners",
    /// If a run does not start, its record is changed so that the period may have another one.
    StartsAreUndone = "starts-are-undone",
    /// The server reports when another client changes a key.
    Tracking = "tracking",
    /// A connection that has gone silent is discarded.
    SilentConnectionsAreDiscarded = "silent-connections-are-discarded",
    /// Only the locks of a revocable client are revoked.
    RevocationIsOptIn = "revocation-is-opt-in",
    /// Answers are published to channels for answers only.
    AnswerChannels = "answer-channels",
    /// The number of answers in a second is limited.
    LimitedAnswers = "limited-answers",
    /// A quorum grants a lock only if a majority of its stores has granted it.
    MajorityGrants = "majority-grants",
    /// A quorum renews a lock only if a majority of its stores has renewed it.
    MajorityRenews = "majority-renews",
    /// The votes for a lost lock of a quorum are not released before its body is dropped.
    LostVotesExpire = "lost-votes-expire",
    /// An attempt without a majority is undone at all stores of a quorum.
    VotesAreUndone = "votes-are-undone",
    /// The votes that stores of a quorum may have are released when these stores answer again.
    ResidualVotesAreFreed = "residual-votes-are-freed",
    /// A hold that a majority confirms gets its votes back from stores that have lost them.
    VotesAreRestored = "votes-are-restored",
    /// A single attempt whose request has failed without an answer makes another one.
    SingleAttemptsAreRepeated = "single-attempts-are-repeated",
    /// A shutdown releases the residual votes.
    ShutdownFreesVotes = "shutdown-frees-votes",
    /// The keys that may be left in etcd after a request without an answer are deleted when it answers again.
    LeftoversAreFreed = "leftovers-are-freed",
    /// Each attempt to acquire a lock of a quorum has an owner of its own.
    OwnerPerAttempt = "owner-per-attempt",
    /// A server votes only once in a quorum.
    VotersAreDistinct = "voters-are-distinct",
    /// The first vote of a server over a new connection counts only after a check of the server.
    NewConnectionsAreChecked = "new-connections-are-checked",
    /// A fencing token is written to a majority of a quorum before it is used.
    FenceIsWrittenBack = "fence-is-written-back",
    /// The servers of a quorum have one version when a client connects.
    VotersHaveOneVersion = "voters-have-one-version",
    /// A member of etcd that does not answer is left for another one.
    SilentMembersAreLeft = "silent-members-are-left",
    /// A member of etcd without a leader refuses requests and ends streams.
    MembersNeedALeader = "members-need-a-leader",
    /// An extension of a lease of etcd counts only if no other leader has taken over meanwhile.
    ExtensionsAreConfirmed = "extensions-are-confirmed",
    /// A key in etcd gets another lease only if it has the one that is known.
    LeasesAreCompared = "leases-are-compared",
    /// A renewal in etcd counts only if the key is there.
    KeysAreVerified = "keys-are-verified",
    /// PostgreSQL answers a request that grants a lock only when the grant is on its disk.
    GrantsAreFlushed = "grants-are-flushed",
    /// A release in PostgreSQL waits neither for the disk nor for a standby.
    ReleasesAreNotFlushed = "releases-are-not-flushed",
    /// A release in PostgreSQL fails while an acquire of its owner is not committed.
    AcquiresAreAnnounced = "acquires-are-announced",
    /// The sequence of the fencing tokens in PostgreSQL is raised while nobody draws from it.
    RaisesAreExclusive = "raises-are-exclusive",
    /// A transaction that has verified a lock in PostgreSQL keeps others from taking it over.
    VerifiedRowsAreLocked = "verified-rows-are-locked",
    /// A renewal in PostgreSQL does not wait for a row that another transaction has locked.
    LockedRowsAreSkipped = "locked-rows-are-skipped",
    /// Leases in PostgreSQL end by the clock of the server.
    ServerClock = "server-clock",
    /// A client relies on notifications of PostgreSQL only if one of its own has arrived.
    ListenersAreProbed = "listeners-are-probed",
    /// A session of a pooler that listens in vain stops listening.
    ListensAreUndone = "listens-are-undone",
    /// A client of PostgreSQL does not go back to a former primary server.
    FormerPrimariesAreLeft = "former-primaries-are-left",
    /// Statements are prepared in PostgreSQL only over connections that no pooler shares.
    PoolersPrepareNothing = "poolers-prepare-nothing",
    /// A fencing token of a quorum is not far ahead of the clocks of the servers that have it.
    TokensFitClocks = "tokens-fit-clocks",
    /// A request for a fencing token is not repeated if the clocks of most servers refuse it.
    ClockRefusalsAreFinal = "clock-refusals-are-final",
    /// A clock that is ahead at a minority does not affect the fencing tokens of a quorum.
    LowestMajorityCounts = "lowest-majority-counts",
    /// The servers of a quorum have the longest quarantine of any of their clients.
    LongestQuarantine = "longest-quarantine",
    /// A quarantine that a client has seen begin does not end early when the clock of its server is set.
    QuarantineByOwnClock = "quarantine-by-own-clock",
    /// A release wakes those who wait for a lock of a quorum once, and not once for each store.
    WakeUpsAreGathered = "wake-ups-are-gathered",
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
