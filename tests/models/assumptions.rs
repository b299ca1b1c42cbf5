//! What exclusion rests on: what the protocol does for it, and what it takes for granted. Each is
//! one switch, so that a test can take it away and be shown what it was there for.

/// What the lock does itself.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Protections {
    /// A body is polled only before the deadline of its lease.
    pub(crate) check_before_poll: bool,
    /// A deadline counts from the instant before the request was sent, not from its answer.
    pub(crate) deadline_from_sending: bool,
    /// A deadline comes a margin before the server's own expiry could.
    pub(crate) margin: bool,
    /// A body is over before its lock is released.
    pub(crate) body_ends_before_release: bool,
    /// A release or an undo deletes the key only with its owner's token in it.
    pub(crate) release_compares: bool,
    /// A renewal extends the key only with its owner's token in it.
    pub(crate) renewal_compares: bool,
    /// A renewal extends what is there, and never makes a key that is gone anew.
    pub(crate) renewal_never_recreates: bool,
    /// A hold that has ended stays so, whatever a renewal that was under way is answered.
    pub(crate) ended_is_final: bool,
    /// A request without an answer gives no permission.
    pub(crate) unknown_is_not_held: bool,
    /// Each acquisition has an owner token of its own.
    pub(crate) fresh_token: bool,
    /// A repeated try that finds its own token in the key never shortens its life.
    pub(crate) retry_never_shortens: bool,
    /// A request without an answer is undone: on its own lane behind it, and on the keeper's.
    pub(crate) undo: bool,
    /// The undo is sent once more after a while.
    pub(crate) second_sweep: bool,
    /// The second sweep is sent even if the first has freed something: that may have been another
    /// request of the same acquisition.
    pub(crate) sweep_after_freeing: bool,
    /// Writes carry a fencing token, and the resource refuses one lower than it has seen.
    pub(crate) fence: bool,
    /// A fencing token is never lower than the server's clock, instead of being a mere counter.
    pub(crate) token_from_clock: bool,
}

impl Default for Protections {
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

/// What the lock can do nothing about.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Assumptions {
    /// The server forgets no key: no `FLUSHALL`, no restart without its data.
    pub(crate) data_is_kept: bool,
    /// The server's clock is not set forward by more than the margin.
    pub(crate) no_jump_forward: bool,
    /// The server's clock is not set back.
    pub(crate) no_jump_back: bool,
    /// Within one lease the server's clock gains no more than the margin.
    pub(crate) drift_within_margin: bool,
    /// A poll that began before the deadline also ends before it: the process is not paused in it.
    pub(crate) polls_end_in_time: bool,
    /// A request that was held up arrives before the second sweep of its undo, if at all.
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
