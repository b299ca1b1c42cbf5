//! The state of the model of the queue: the store with its key and its queue, and the clients with
//! their requests and messages in flight.
//!
//! Times are remaining times and ages. Tickets are numbered anew after each step, because only
//! their equality matters. The number of states is therefore finite without a bound on time.

/// The full term of a lease, in ticks.
pub(crate) const TERM: u8 = 3;
/// The term of a transferred lease, until its first renewal.
pub(crate) const TRANSFER_TERM: u8 = 2;
/// The most messages in flight to one client. A message beyond them is lost.
pub(crate) const MESSAGES: usize = 2;
/// A ticket that nobody knows yet.
pub(crate) const NEW: ModelTicket = ModelTicket::MAX;

/// A ticket of one token. Only equality matters, because the queue is ordered.
pub(crate) type ModelTicket = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QueueRequest {
    /// `SET … NX PX`.
    Take,
    Register,
    Check(ModelTicket),
    Renew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QueueReply {
    /// The client has the key, for the full term.
    Granted,
    Queued(ModelTicket),
    /// The client has neither the key nor a place in the queue, as far as the request tells.
    Refused,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum QueueCall {
    #[default]
    Idle,
    Waiting {
        /// The ticket that was queued `basis` ticks ago.
        ticket: Option<ModelTicket>,
        basis: u8,
        /// Whether the next request is a registration, not a check.
        due: bool,
    },
    /// Holds the lock for this many ticks, according to its own clock.
    Held {
        valid: u8,
    },
    Over,
    /// The client has crashed, and its connection is gone.
    Gone,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelClient {
    pub(crate) call: QueueCall,
    /// The number of requests that were sent.
    pub(crate) requests: u8,
    /// The awaited request in flight, and the ticks since it was sent.
    pub(crate) request: Option<(QueueRequest, u8)>,
    /// The reply in flight, and the ticks since its request was sent.
    pub(crate) reply: Option<(QueueReply, u8)>,
    /// The tickets of the messages in flight.
    pub(crate) messages: Vec<ModelTicket>,
    /// Whether the release of the token is still to be served.
    pub(crate) releasing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) owner: usize,
    /// The number of ticks until the key expires; never zero.
    pub(crate) left: u8,
    /// The owner was sent a message, which was not lost. Not visible to the protocol.
    pub(crate) told: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct QueueState {
    pub(crate) key: Option<QueueKey>,
    pub(crate) queue: Vec<(usize, ModelTicket)>,
    pub(crate) clients: Vec<ModelClient>,
    /// A request of a call, which no longer awaits it. The request may still arrive.
    pub(crate) late: Option<(usize, QueueRequest)>,
    /// The last key expired while clients were queued. This field and those below are not visible
    /// to the protocol.
    pub(crate) expired: bool,
    /// A client overtook the first one in the queue.
    pub(crate) overtaken: bool,
    /// A transfer went to a client whose connection was gone.
    pub(crate) missed: bool,
}

impl ModelClient {
    pub(crate) fn waits(&self) -> bool {
        matches!(self.call, QueueCall::Waiting { .. })
    }

    pub(crate) fn awaits_nothing(&self) -> bool {
        self.request.is_none() && self.reply.is_none()
    }

    pub(crate) fn tick(&mut self, longest: u8) {
        match &mut self.call {
            QueueCall::Waiting { basis, .. } => *basis = longest.min(*basis + 1),
            QueueCall::Held { valid } => *valid = valid.saturating_sub(1),
            QueueCall::Idle | QueueCall::Over | QueueCall::Gone => {}
        }
        let request = self.request.as_mut().map(|(_, age)| age);
        let reply = self.reply.as_mut().filter(|(reply, _)| *reply != QueueReply::Refused);
        for age in request.into_iter().chain(reply.map(|(_, age)| age)) {
            *age = TERM.min(*age + 1);
        }
    }

    pub(crate) fn tickets(&mut self) -> impl Iterator<Item = &mut ModelTicket> {
        let waiting = match &mut self.call {
            QueueCall::Waiting { ticket, .. } => ticket.as_mut(),
            _ => None,
        };
        let request = match &mut self.request {
            Some((QueueRequest::Check(ticket), _)) => Some(ticket),
            _ => None,
        };
        let reply = match &mut self.reply {
            Some((QueueReply::Queued(ticket), _)) => Some(ticket),
            _ => None,
        };
        waiting.into_iter().chain(request).chain(reply).chain(&mut self.messages)
    }
}

impl QueueState {
    pub(crate) fn any(&self, condition: impl Fn(&ModelClient) -> bool) -> bool {
        self.clients.iter().any(condition)
    }

    /// The clients that hold the lock before their own deadlines.
    pub(crate) fn holders(&self) -> impl Iterator<Item = usize> + '_ {
        let holds = |n: &usize| matches!(self.clients[*n].call, QueueCall::Held { valid: 1.. });
        (0..self.clients.len()).filter(holds)
    }

    pub(crate) fn has_key(&self, n: usize) -> bool {
        self.key.is_some_and(|key| key.owner == n)
    }

    pub(crate) fn is_queued(&self, n: usize) -> bool {
        self.queue.iter().any(|(queued, _)| *queued == n)
    }

    pub(crate) fn is_late(&self, n: usize) -> bool {
        self.late.is_some_and(|(owner, _)| owner == n)
    }

    /// Whether nothing of a client is in flight.
    pub(crate) fn is_quiet(&self, n: usize) -> bool {
        let client = &self.clients[n];
        let silent = !self.is_late(n) && client.messages.is_empty() && !client.releasing;
        client.awaits_nothing() && silent
    }

    /// Whether a call is over, and nothing of it is in flight.
    pub(crate) fn is_done(&self, n: usize) -> bool {
        self.clients[n].call == QueueCall::Over && self.is_quiet(n)
    }

    /// A client stops waiting for its reply. A request that could still take effect may be late, but
    /// only one at a time, so that the number of states is small.
    pub(crate) fn abandon(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.reply = None;
        if let Some((request @ (QueueRequest::Take | QueueRequest::Register), _)) =
            client.request.take()
        {
            self.late.get_or_insert((n, request));
        }
    }

    /// A request grants a client the key for the full term. A plain take looks at no queue.
    pub(crate) fn grant(&mut self, n: usize, plain: bool) -> QueueReply {
        let mut connected =
            self.queue.iter().filter(|(queued, _)| self.clients[*queued].call != QueueCall::Gone);
        let overtakes = self.key.is_none() && connected.next().is_some_and(|first| first.0 != n);
        self.overtaken |= overtakes && !(plain && self.expired);
        if !plain {
            self.queue.retain(|(queued, _)| *queued != n);
        }
        (self.key, self.expired) = (Some(QueueKey { owner: n, left: TERM, told: false }), false);
        QueueReply::Granted
    }

    /// Appends a client to the queue, unless it has a place already.
    pub(crate) fn enqueue(&mut self, n: usize) -> QueueReply {
        let place = self.queue.iter().find(|(queued, _)| *queued == n).copied();
        let (_, ticket) = place.unwrap_or_else(|| {
            self.queue.push((n, NEW));
            (n, NEW)
        });
        QueueReply::Queued(ticket)
    }

    /// A client in the queue overtakes those before it.
    pub(crate) fn bring_forward(&mut self, place: usize) {
        let is_connected = |(n, _): &(usize, _)| self.clients[*n].call != QueueCall::Gone;
        self.overtaken |= self.queue[..place].iter().any(is_connected);
        self.queue[..=place].rotate_right(1);
    }

    /// The key goes to the first client in the queue.
    pub(crate) fn transfer(&mut self, skips_gone: bool) {
        while !self.queue.is_empty() {
            let (owner, ticket) = self.queue.remove(0);
            let client = &mut self.clients[owner];
            let gone = client.call == QueueCall::Gone;
            if gone && skips_gone {
                continue;
            }
            self.missed |= gone;
            let told = !gone && client.messages.len() < MESSAGES;
            if told {
                client.messages.push(ticket);
            }
            (self.key, self.expired) = (Some(QueueKey { owner, left: TRANSFER_TERM, told }), false);
            return;
        }
    }

    /// Advances all clocks. A basis older than `longest` is as good as none.
    pub(crate) fn tick(&mut self, longest: u8) {
        self.key = self.key.and_then(|key| {
            self.expired |= key.left == 1 && !self.queue.is_empty();
            (key.left > 1).then(|| QueueKey { left: key.left - 1, ..key })
        });
        self.clients.iter_mut().for_each(|client| client.tick(longest));
    }

    /// Numbers the tickets of each client in the order in which they are found.
    pub(crate) fn number_tickets(&mut self) {
        for (n, client) in self.clients.iter_mut().enumerate() {
            let mut found = Vec::new();
            let queued = self.queue.iter_mut().filter(|(queued, _)| *queued == n);
            for ticket in client.tickets().chain(queued.map(|(_, ticket)| ticket)) {
                if !found.contains(ticket) {
                    found.push(*ticket);
                }
                let number = found.iter().position(|known| known == ticket);
                *ticket = number.and_then(|n| ModelTicket::try_from(n).ok()).unwrap_or(NEW);
            }
        }
    }
}
