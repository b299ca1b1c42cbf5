//! The protections that the promises rest on, each with a name and a switch.
//!
//! The switches are for the negative controls of the fault suite: built with `--cfg lock_controls`, a
//! process runs without the protection that the variable `LOCK_WITHOUT` names (or several, with `+`
//! between), and the test of that protection has to fail. In every other build all of them are constants, always on, and nothing is
//! left of them in the program.

/// Declares the protections with their names.
macro_rules! protections {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        // Some are scripts', which other builds do not take apart.
        #[cfg_attr(not(lock_controls), allow(dead_code))]
        pub(crate) enum Protection {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Protection {
            #[cfg(lock_controls)]
            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

protections! {
    /// A body is not polled once its deadline has passed, and is dropped when its lock is lost.
    CheckBeforePoll = "check-before-poll",
    /// A deadline counts from before the request was sent; an answer that comes later is no grant.
    DeadlineFromSending = "deadline-from-sending",
    /// A request without an answer gives no permission.
    UnknownIsNotHeld = "unknown-is-not-held",
    /// A store in trouble is not reported as a busy lock.
    UnavailableIsNotBusy = "unavailable-is-not-busy",
    /// A request without an answer is undone.
    Undo = "undo",
    /// All tries of one acquisition use one token.
    OneToken = "one-token",
    /// A dropped guard releases.
    ReleaseOnDrop = "release-on-drop",
    /// A release that was dropped half-way, or got no answer, goes on in the background.
    ReleaseGoesOn = "release-goes-on",
    /// A lock is taken only if its key is free.
    OnlyIfFree = "only-if-free",
    /// A lock has an expiry from the first moment on.
    Expiry = "expiry",
    /// Only its owner releases a lock.
    OwnerReleases = "owner-releases",
    /// Only its owner renews a lock.
    OwnerRenews = "owner-renews",
    /// A lock that is gone is not made again by a renewal.
    GoneStaysGone = "gone-stays-gone",
    /// A late try of an acquisition, or a late renewal, does not shorten the lease.
    TriesShortenNothing = "tries-shorten-nothing",
    /// Locks are renewed.
    Renewal = "renewal",
    /// A renewal that failed is tried again.
    RenewalRetry = "renewal-retry",
    /// No renewal is sent once the release has begun.
    ReleaseEndsRenewal = "release-ends-renewal",
    /// A key that stays for its minimum has its owner no more.
    KeptUnderAnotherName = "kept-under-another-name",
    /// Renewals have a thread of their own.
    KeeperThread = "keeper-thread",
    /// Contenders wake up by themselves.
    SafetyPoll = "safety-poll",
    /// Contenders are woken when the connection that wakes them was lost, and when it is back.
    ReconnectWakes = "reconnect-wakes",
    /// A script that the server has forgotten is sent as text.
    ScriptByText = "script-by-text",
    /// Errors are told apart.
    KindsOfErrors = "kinds-of-errors",
    /// What the URL holds is not shown.
    SecretsStayIn = "secrets-stay-in",
    /// A process passes a lock on among its own tasks for a turn only, if others wait.
    TurnsEnd = "turns-end",
    /// A process that has woken others lets them go first.
    StepBack = "step-back",
    /// A lock that was passed on to one who gives up goes to the next, or is released.
    PassOn = "pass-on",
    /// A lock that was passed on is valid for no longer than before.
    PassedOnAsItIs = "passed-on-as-it-is",
    /// A key whose lock was lost is freed no earlier than the body is gone.
    KeyOutlivesBody = "key-outlives-body",
    /// An offer that is not taken goes to the waiters behind.
    OffersGoOn = "offers-go-on",
    /// Who waits for the store, and is not polled, keeps nobody else waiting.
    OwnersAreHelped = "owners-are-helped",
    /// Requests that are not polled keep no others from being sent.
    PermitsComeBack = "permits-come-back",
    /// A request is not given up while answers to others arrive.
    PatienceWithAnswers = "patience-with-answers",
    /// The log has a thread of its own.
    LogThread = "log-thread",
    /// A fencing token is higher than the last one.
    FenceAboveLast = "fence-above-last",
    /// A fencing token is no lower than the server's clock.
    FenceAboveClock = "fence-above-clock",
    /// Only the replies that say so are a grant.
    ExpectedReplies = "expected-replies",
    /// Only so many requests are under way on a connection at a time.
    LimitedRequests = "limited-requests",
    /// Channels are subscribed a few at a time.
    LimitedSubscriptions = "limited-subscriptions",
    /// A connection that has gone silent is given up.
    SilenceIsNoticed = "silence-is-noticed",
}

impl Protection {
    #[cfg(not(lock_controls))]
    #[inline]
    #[allow(clippy::unused_self)]
    pub(crate) const fn is_on(self) -> bool {
        true
    }

    #[cfg(lock_controls)]
    pub(crate) fn is_on(self) -> bool {
        use std::sync::LazyLock;

        static WITHOUT: LazyLock<Option<String>> =
            LazyLock::new(|| std::env::var("LOCK_WITHOUT").ok());
        let mut without = WITHOUT.iter().flat_map(|names| names.split('+'));
        !without.any(|name| name == self.name())
    }
}
