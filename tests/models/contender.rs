//! One acquisition from its first try to the last sweep after it, with what it has under way.
//!
//! Each acquisition has two lanes to the server. The caller's carries its tries and its release, the
//! keeper's the renewals and the sweeps; the server serves each lane in order, and neither waits
//! for the other. A lane that breaks may have a request still on its way, out of any order.

/// What is sent. `age` is counted from the instant before the sending and no further than the
/// longest term; it stands still where nobody waits for the answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Acquire { first: bool, awaited: bool, age: u8 },
    Renew { awaited: bool, age: u8 },
    Release,
    Undo,
    Fence,
}

/// What comes back to whoever still waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted { age: u8 },
    Busy,
    Extended { age: u8 },
    NotOurs,
    Fence(u8),
}

/// A connection: requests in the order in which they are served, and an answer on its way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    requests: [Option<Request>; 3],
    pub(crate) answer: Option<Answer>,
}

impl Lane {
    /// `None` while it is full, so that the sender has to wait.
    pub(crate) fn push(&mut self, request: Request) -> Option<()> {
        *self.requests.iter_mut().find(|slot| slot.is_none())? = Some(request);
        Some(())
    }

    pub(crate) fn pop(&mut self) -> Option<Request> {
        let first = self.requests[0].take()?;
        self.requests.rotate_left(1);
        Some(first)
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> + '_ {
        self.requests.iter().flatten().copied()
    }

    pub(crate) fn carries(&self, request: Request) -> bool {
        self.requests().any(|carried| carried == request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Nobody waits for what is under way any more.
    pub(crate) fn abandon(&mut self) {
        self.answer = None;
        for request in self.requests.iter_mut().flatten() {
            if let Request::Acquire { awaited, age, .. } | Request::Renew { awaited, age } = request
            {
                (*awaited, *age) = (false, 0);
            }
        }
    }

    fn tick(&mut self, longest: u8) {
        for request in self.requests.iter_mut().flatten() {
            if let Request::Acquire { awaited: true, age, .. }
            | Request::Renew { awaited: true, age } = request
            {
                *age = longest.min(*age + 1);
            }
        }
        if let Some(Answer::Granted { age } | Answer::Extended { age }) = &mut self.answer {
            *age = longest.min(*age + 1);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// No request of it is being waited for.
    Contending,
    Asking,
    /// Believes to have the lock, for so many ticks.
    Held {
        valid: u8,
    },
    /// Against its holder's will.
    Lost,
    /// Released, or given up.
    Over,
    /// Has forgotten everything, and does nothing more.
    Crashed,
}

/// One poll of a body, from the check before it to its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Poll {
    /// The grant that the body runs under. Nobody in the model can see it.
    pub(crate) grant: u8,
    pub(crate) fencing: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Contender {
    pub(crate) phase: Phase,
    /// Tries that have been sent.
    pub(crate) tries: u8,
    /// One of them has had no answer, and may have taken effect, or may yet.
    pub(crate) doubt: bool,
    pub(crate) caller: Lane,
    pub(crate) keeper: Lane,
    /// A try whose lane broke: it may still arrive, at any time.
    pub(crate) stray: Option<Request>,
    pub(crate) broke: bool,
    /// Rounds of the background release that are still to be sent.
    pub(crate) sweeps: u8,
    pub(crate) grant: u8,
    pub(crate) fencing: Option<u8>,
    pub(crate) poll: Option<Poll>,
}

impl Default for Contender {
    fn default() -> Self {
        Self {
            phase: Phase::Contending,
            tries: 0,
            doubt: false,
            caller: Lane::default(),
            keeper: Lane::default(),
            stray: None,
            broke: false,
            sweeps: 0,
            grant: 0,
            fencing: None,
            poll: None,
        }
    }
}

impl Contender {
    pub(crate) fn valid(&self) -> Option<u8> {
        match self.phase {
            Phase::Held { valid } => Some(valid),
            _ => None,
        }
    }

    /// It wants nothing, and nothing of it is under way.
    pub(crate) fn is_done(&self) -> bool {
        let over = matches!(self.phase, Phase::Over | Phase::Lost);
        (over || self.tries == 0)
            && self.caller.is_empty()
            && self.keeper.is_empty()
            && self.stray.is_none()
            && self.sweeps == 0
    }

    /// Whether there was something to sweep, and the last sweep has been served.
    pub(crate) fn is_swept(&self) -> bool {
        let over = matches!(self.phase, Phase::Over | Phase::Lost);
        over && self.doubt && self.sweeps == 0 && !self.keeper.carries(Request::Undo)
    }

    pub(crate) fn tick(&mut self, longest: u8) {
        self.caller.tick(longest);
        self.keeper.tick(longest);
        if let Phase::Held { valid } = &mut self.phase {
            *valid = valid.saturating_sub(1);
        }
    }
}
