//! The safeguards and assumptions that exclusion depends on. Each has a switch, so that a test can
//! disable it and show its effect.

/// The safeguards of the protocol.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Safeguards {
    /// A body is polled only before its deadline.
    pub(crate) check_before_poll: bool,
    /// A deadline counts from before the request is sent, not from the reply.
    pub(crate) deadline_from_sending: bool,
    /// A deadline is earlier than the expiry on the server, by a margin.
    pub(crate) margin: bool,
    /// A body ends before its lock is released.
    pub(crate) body_ends_before_release: bool,
    /// A release or an undo deletes the key only if it contains the token of the owner.
    pub(crate) release_compares: bool,
    /// A renewal extends the key only if it contains the token of the owner.
    pub(crate) renewal_compares: bool,
    /// A renewal never creates a key.
    pub(crate) renewal_never_recreates: bool,
    /// The reply to a renewal that was in flight does not revive a hold that has ended.
    pub(crate) ended_is_final: bool,
    /// A request without a reply grants nothing.
    pub(crate) unknown_is_not_held: bool,
    /// Each acquisition has its own owner token.
    pub(crate) fresh_token: bool,
    /// A retry that finds its own token in the key does not shorten the time to live of the key.
    pub(crate) retry_never_shortens: bool,
    /// A request without a reply is undone, on its own lane and on the background lane.
    pub(crate) undo: bool,
    /// The undo is sent a second time after a while.
    pub(crate) second_sweep: bool,
    /// The second sweep is sent even if the first one has freed the key, because another request of
    /// the same acquisition may have taken that key.
    pub(crate) sweep_after_freeing: bool,
    /// Writes carry a fencing token, and the resource refuses tokens lower than the highest it has
    /// seen.
    pub(crate) fence: bool,
    /// A fencing token is at least the clock of the server, and not only a counter.
    pub(crate) token_from_clock: bool,
}

impl Default for Safeguards {
    fn default() -> Self {
        Self {
            check_before_poll: true,
            deadline_from_sending: true,
            margin: true,
            body_ends_before_release: true,
            release_compares: true,
            renewal_compares: true,
            renewal_never_recreates: true,
            ended_is_final: true,
            unknown_is_not_held: true,
            fresh_token: true,
            retry_never_shortens: true,
            undo: true,
            second_sweep: true,
            sweep_after_freeing: true,
            fence: true,
            token_from_clock: true,
        }
    }
}

/// The assumptions of the protocol about its environment.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Assumptions {
    /// The server loses no keys: no `FLUSHALL`, and no restart without its data.
    pub(crate) data_is_kept: bool,
    /// The clock of the server is not set forward by more than the margin.
    pub(crate) no_jump_forward: bool,
    /// The clock of the server is not set back.
    pub(crate) no_jump_back: bool,
    /// Within one lease, the clock of the server gains at most the margin.
    pub(crate) drift_within_margin: bool,
    /// A poll that begins before the deadline ends before the deadline: the process is not paused.
    pub(crate) polls_end_in_time: bool,
    /// A delayed request arrives before the second sweep of its undo, if at all.
    pub(crate) late_request_meets_sweep: bool,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            data_is_kept: true,
            no_jump_forward: true,
            no_jump_back: true,
            drift_within_margin: true,
            polls_end_in_time: true,
            late_request_meets_sweep: true,
        }
    }
}
