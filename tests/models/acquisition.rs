//! One acquisition, from its first attempt to the last sweep of its cleanup, with its requests in
//! flight.
//!
//! Each acquisition has two lanes to the server. The lane of the caller carries attempts and the
//! release. The lane of the background thread carries renewals and sweeps, which are the rounds of
//! a cleanup. The server serves each lane in order, and independently of the other one. If a lane
//! breaks, one of its requests may still arrive later, out of order.

/// A request. `age` counts the ticks since just before the request was sent, up to the longest
/// term. It is zero if no reply is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ModelRequest {
    Acquire { first: bool, awaited: bool, age: u8 },
    Renew { awaited: bool, age: u8 },
    Release,
    Undo,
    Fence,
}

/// A reply to an awaited request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted { age: u8 },
    Busy,
    Extended { age: u8 },
    NotOwner,
    Fence(u8),
}

/// A connection: requests in the order in which they are served, and a reply in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelLane {
    requests: [Option<ModelRequest>; 3],
    pub(crate) reply: Option<Reply>,
}

impl ModelLane {
    /// Appends a request. Returns `None` if the lane is full, so that the sender has to wait.
    pub(crate) fn push(&mut self, request: ModelRequest) -> Option<()> {
        *self.requests.iter_mut().find(|slot| slot.is_none())? = Some(request);
        Some(())
    }

    pub(crate) fn pop(&mut self) -> Option<ModelRequest> {
        let first = self.requests[0].take()?;
        self.requests.rotate_left(1);
        Some(first)
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = ModelRequest> + '_ {
        self.requests.iter().flatten().copied()
    }

    pub(crate) fn carries(&self, request: ModelRequest) -> bool {
        self.requests().any(|carried| carried == request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Stops waiting for all requests in flight.
    pub(crate) fn abandon(&mut self) {
        self.reply = None;
        for request in self.requests.iter_mut().flatten() {
            if let ModelRequest::Acquire { awaited, age, .. }
            | ModelRequest::Renew { awaited, age } = request
            {
                (*awaited, *age) = (false, 0);
            }
        }
    }

    fn tick(&mut self, longest: u8) {
        for request in self.requests.iter_mut().flatten() {
            if let ModelRequest::Acquire { awaited: true, age, .. }
            | ModelRequest::Renew { awaited: true, age } = request
            {
                *age = longest.min(*age + 1);
            }
        }
        if let Some(Reply::Granted { age } | Reply::Extended { age }) = &mut self.reply {
            *age = longest.min(*age + 1);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AcquisitionPhase {
    /// Between two attempts.
    Idle,
    /// Between an attempt and its reply.
    Attempting,
    /// Holds the lock for this many ticks, according to the clock of its process.
    Held { valid: u8 },
    /// The hold ended before its release.
    Lost,
    /// Released, or given up.
    Over,
    /// The process has crashed, and takes no more steps.
    Crashed,
}

/// One poll of a body, from the check before it to its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Poll {
    /// The grant under which the body runs. Not visible to the protocol.
    pub(crate) grant: u8,
    pub(crate) fencing: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelAcquisition {
    pub(crate) phase: AcquisitionPhase,
    /// The number of attempts sent.
    pub(crate) attempts: u8,
    /// An attempt got no reply, so it may have taken effect, or may still take effect.
    pub(crate) uncertain: bool,
    pub(crate) caller: ModelLane,
    pub(crate) background: ModelLane,
    /// An attempt whose lane broke. It may still arrive at any time.
    pub(crate) stray: Option<ModelRequest>,
    pub(crate) has_broken: bool,
    /// The rounds of the cleanup that are still to be sent.
    pub(crate) sweeps: u8,
    pub(crate) grant: u8,
    pub(crate) fencing: Option<u8>,
    pub(crate) poll: Option<Poll>,
}

impl Default for ModelAcquisition {
    fn default() -> Self {
        Self {
            phase: AcquisitionPhase::Idle,
            attempts: 0,
            uncertain: false,
            caller: ModelLane::default(),
            background: ModelLane::default(),
            stray: None,
            has_broken: false,
            sweeps: 0,
            grant: 0,
            fencing: None,
            poll: None,
        }
    }
}

impl ModelAcquisition {
    pub(crate) fn valid(&self) -> Option<u8> {
        match self.phase {
            AcquisitionPhase::Held { valid } => Some(valid),
            _ => None,
        }
    }

    /// Whether the acquisition is over, and none of its requests is in flight.
    pub(crate) fn is_done(&self) -> bool {
        let over = matches!(self.phase, AcquisitionPhase::Over | AcquisitionPhase::Lost);
        (over || self.attempts == 0)
            && self.caller.is_empty()
            && self.background.is_empty()
            && self.stray.is_none()
            && self.sweeps == 0
    }

    /// Whether a cleanup was necessary, and its last sweep has been served.
    pub(crate) fn is_swept(&self) -> bool {
        let over = matches!(self.phase, AcquisitionPhase::Over | AcquisitionPhase::Lost);
        over && self.uncertain && self.sweeps == 0 && !self.background.carries(ModelRequest::Undo)
    }

    pub(crate) fn tick(&mut self, longest: u8) {
        self.caller.tick(longest);
        self.background.tick(longest);
        if let AcquisitionPhase::Held { valid } = &mut self.phase {
            *valid = valid.saturating_sub(1);
        }
    }
}
