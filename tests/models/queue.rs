//! The queue between processes as a state machine: a release transfers the lock to the first
//! waiter in a queue in the store, and a message tells the waiter.
//!
//! A waiter remembers its ticket and the *basis*: the instant at which it sent the last request whose
//! answer said that this ticket was queued. It accepts a message with this ticket without a request.
//! The transfer happened after the basis, so the lease of the transfer, counted from the basis, ends
//! before the key expires.
//!
//! As in the other models, an action is one step of a client, the store or the clock, and each of
//! them may pause for any number of steps of the others. A frozen client and a delayed message
//! therefore need no actions of their own. A client makes one call with one token. Only remaining
//! times and ages are stored, and tickets are numbered anew after each step, so the number of
//! states is finite without a bound on time. Each control in `main.rs` switches off one rule, and
//! shows that a property is then violated.

use stateright::{Model, Property};

use crate::queue_state::{
    ModelClient, QueueCall, QueueReply, QueueRequest, QueueState, TERM, TRANSFER_TERM,
};

/// The number of ticks within which all waiters are granted the lock, if there are no faults and
/// holders release the lock at once.
const PATIENCE: u8 = 2 * TERM;

/// At most one client holds the lock before its own deadline.
pub(crate) const EXCLUSION: &str = "exclusion";
/// A client that holds the lock before its own deadline has the key.
pub(crate) const KEY: &str = "the holder has the key";
/// A client that is done has neither the key nor a place in the queue.
pub(crate) const NOTHING_STAYS: &str = "nothing stays";
/// A key that was transferred to a call that had ended is released before it expires.
pub(crate) const TRANSFERS_END: &str = "transfers to ended calls are released";
/// A transfer never goes to a client whose connection is gone.
pub(crate) const REACHED: &str = "transfers reach their clients";
/// The key never goes past the first connected client in the queue. The exception is a plain take
/// of an expired key.
pub(crate) const FIFO: &str = "first in, first out";
/// A lock that was released is free only if no connected client waits for it.
pub(crate) const NO_LOST_RELEASE: &str = "a released lock goes to a client that waits";
/// If nothing is in flight, every waiter is granted the lock, unless there are faults or other clients
/// keep the lock. Whatever is in flight arrives if there are no faults, so this covers all states.
pub(crate) const PROGRESS: &str = "progress";

/// The configuration of the model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Queue {
    /// The number of requests of each client. The length is the number of clients. Progress is
    /// checked with further requests.
    pub(crate) requests: &'static [u8],
    /// The process of each client; a process of its own if there is no entry. The clients of a process
    /// are its fair calls, each of which has a claim.
    pub(crate) processes: &'static [usize],
    /// Whether processes crash.
    pub(crate) crashes: bool,
    /// Whether clients begin with a plain `SET … NX`, which looks at no queue. Fair calls do not.
    pub(crate) takes: bool,
    /// A lock is not handed off to another client of the process.
    pub(crate) claims_keep_order: bool,
    /// Whether clients stop waiting for replies, so that their requests may arrive late.
    pub(crate) time_outs: bool,
    /// Whether holders renew their leases.
    pub(crate) renews: bool,
    /// The deadline after a message counts from the basis, not from the receipt of the message.
    pub(crate) deadline_from_basis: bool,
    /// A message is accepted only if it carries the ticket of the waiter.
    pub(crate) tickets_are_compared: bool,
    /// The basis is the sending of a request that was answered, not of a request in flight.
    pub(crate) basis_is_answered: bool,
    /// The basis is the sending of a request, not the receipt of its answer.
    pub(crate) basis_from_sending: bool,
    /// The deadline after a message counts the term of the transfer, not the full term.
    pub(crate) transfer_term_is_read: bool,
    /// A waiter that gives up releases its token.
    pub(crate) cancelled_calls_release: bool,
    /// A release is repeated while a late request of its token may arrive.
    pub(crate) releases_repeat: bool,
    /// A release removes the place of its token in the queue even if its token has the key.
    pub(crate) releases_remove_places: bool,
    /// A release transfers the key to the first waiter.
    pub(crate) releases_transfer: bool,
    /// A client ignores a message about a call that does not wait.
    pub(crate) other_messages_are_ignored: bool,
    /// A transfer skips clients whose connections are gone.
    pub(crate) gone_are_skipped: bool,
    /// Waiters check now and then whether they are still queued.
    pub(crate) checks: bool,
    /// A check finds a client queued only while another client has the key.
    pub(crate) checks_see_the_key: bool,
    /// *Assumed:* a late request arrives before the last release of its token, if at all.
    pub(crate) late_request_meets_release: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            requests: &[1, 2, 1],
            processes: &[],
            crashes: false,
            takes: true,
            claims_keep_order: true,
            time_outs: false,
            renews: false,
            deadline_from_basis: true,
            tickets_are_compared: true,
            basis_is_answered: true,
            basis_from_sending: true,
            transfer_term_is_read: true,
            cancelled_calls_release: true,
            releases_repeat: true,
            releases_remove_places: true,
            releases_transfer: true,
            other_messages_are_ignored: true,
            gone_are_skipped: true,
            checks: true,
            checks_see_the_key: true,
            late_request_meets_release: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueAction {
    Take(usize),
    Register(usize),
    Check(usize),
    Renew(usize),
    /// The store serves the awaited request.
    Serve(usize),
    Receive(usize),
    /// Stops waiting for a reply. The request or the reply may be lost.
    TimeOut(usize),
    ServeLate,
    LoseLate,
    /// Accepts a message without a request.
    Accept(usize),
    /// Gets a message without accepting it, possibly because little is left of the lease.
    Dismiss(usize),
    LoseMessage(usize),
    /// Gives up, or releases the lock, or finds that the lease has ended.
    End(usize),
    ServeRelease(usize),
    Crash(usize),
    Tick,
}

impl Model for Queue {
    type State = QueueState;
    type Action = QueueAction;

    fn init_states(&self) -> Vec<QueueState> {
        let clients = vec![ModelClient::default(); self.requests.len()];
        vec![QueueState { clients, ..QueueState::default() }]
    }

    /// All actions. [`Queue::step`] rejects those that are impossible.
    fn actions(&self, _: &QueueState, actions: &mut Vec<QueueAction>) {
        use QueueAction::*;
        for n in 0..self.requests.len() {
            actions.extend([Take(n), Register(n), Check(n), Renew(n), Serve(n), Receive(n)]);
            actions.extend([TimeOut(n), Accept(n), Dismiss(n)]);
            actions.extend([LoseMessage(n), End(n), ServeRelease(n), Crash(n)]);
        }
        actions.extend([ServeLate, LoseLate, Tick]);
    }

    fn next_state(&self, last: &QueueState, action: QueueAction) -> Option<QueueState> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        next.number_tickets();
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &QueueState| state.holders().count() <= 1),
            Property::always(KEY, |_, state: &QueueState| {
                state.holders().all(|n| state.has_key(n))
            }),
            Property::always(TRANSFERS_END, |_, state: &QueueState| {
                !state.key.is_some_and(|key| key.told && state.is_done(key.owner))
            }),
            Property::always(REACHED, |_, state: &QueueState| !state.missed),
            Property::always(FIFO, |_, state: &QueueState| !state.overtaken),
            Property::always(NO_LOST_RELEASE, |_, state: &QueueState| {
                let is_connected = |(n, _): &(usize, _)| state.clients[*n].call != QueueCall::Gone;
                state.key.is_some() || state.expired || !state.queue.iter().any(is_connected)
            }),
            Property::always(PROGRESS, |model: &Queue, state: &QueueState| {
                let quiet = (0..state.clients.len()).all(|n| state.is_quiet(n));
                !(quiet && state.any(ModelClient::waits)) || model.serves_all(state.clone())
            }),
            Property::sometimes("a message is accepted", |_, state: &QueueState| {
                state.holders().any(|n| state.key.is_some_and(|key| key.owner == n && key.told))
            }),
            Property::sometimes("a message comes before its reply", |_, state: &QueueState| {
                state.any(|client| {
                    matches!(client.reply, Some((QueueReply::Queued(ticket), _))
                        if client.messages.contains(&ticket))
                })
            }),
            Property::sometimes("a call that has ended gets a message", |_, state: &QueueState| {
                state.any(|client| client.call == QueueCall::Over && !client.messages.is_empty())
            }),
        ];
        if self.time_outs {
            properties.push(Property::sometimes(
                "a message carries the ticket of an earlier place",
                |_, state: &QueueState| {
                    state.queue.iter().any(|(n, ticket)| {
                        state.clients[*n].messages.first().is_some_and(|told| told != ticket)
                    })
                },
            ));
        }
        // Otherwise, a late request may take the key or a place in the queue. The place costs the
        // others the lease of one transfer.
        if self.late_request_meets_release {
            properties.push(Property::always(NOTHING_STAYS, |_, state: &QueueState| {
                (0..state.clients.len())
                    .all(|n| !state.is_done(n) || !state.has_key(n) && !state.is_queued(n))
            }));
        }
        properties
    }
}

impl Queue {
    /// Whether every waiter is granted the lock within [`PATIENCE`], if there are no faults, all
    /// participants take their steps in turn, holders release the lock at once, no client begins, and
    /// none gives up.
    fn serves_all(&self, mut state: QueueState) -> bool {
        use QueueAction::*;
        for _ in 0..PATIENCE {
            for n in 0..self.requests.len() {
                state.clients[n].requests = 0;
                let requests = [Register(n), Check(n), Serve(n), Receive(n)];
                let others = [Accept(n), Dismiss(n), End(n), ServeRelease(n)];
                for action in requests.into_iter().chain(others) {
                    let begins_or_gives_up = match action {
                        Register(_) => !state.clients[n].waits(),
                        End(_) => state.clients[n].waits(),
                        _ => false,
                    };
                    if !begins_or_gives_up {
                        state = self.next_state(&state, action).unwrap_or(state);
                    }
                }
            }
            if !state.any(ModelClient::waits) {
                return true;
            }
            state = self.next_state(&state, Tick).unwrap_or(state);
        }
        false
    }

    /// Takes a step. Returns `None` if the step is impossible; `state` is then invalid.
    fn step(&self, state: &mut QueueState, action: QueueAction) -> Option<()> {
        use QueueAction::*;
        match action {
            Take(n) | Register(n) | Check(n) | Renew(n) => self.send(state, n, action),
            Serve(n) => {
                let (request, age) = state.clients[n].request.take()?;
                let reply = self.serve(state, n, request);
                let age = if reply == QueueReply::Refused { 0 } else { age };
                state.clients[n].reply = Some((reply, age));
                Some(())
            }
            ServeLate => {
                let (n, request) = state.late.take()?;
                self.serve(state, n, request);
                Some(())
            }
            LoseLate => state.late.take().map(drop),
            Receive(n) => self.receive(&mut state.clients[n]),
            TimeOut(n) if self.time_outs && !state.clients[n].awaits_nothing() => {
                state.abandon(n);
                Some(())
            }
            Accept(n) | Dismiss(n) | LoseMessage(n) => self.take_message(state, n, action),
            End(n) => {
                let client = &mut state.clients[n];
                client.releasing = match client.call {
                    QueueCall::Waiting { .. } => self.cancelled_calls_release,
                    QueueCall::Held { .. } => true,
                    QueueCall::Idle | QueueCall::Over | QueueCall::Gone => return None,
                };
                (client.call, client.requests) = (QueueCall::Over, 0);
                state.abandon(n);
                Some(())
            }
            ServeRelease(n) if state.clients[n].releasing => {
                self.release(state, n);
                let repeats = self.releases_repeat && self.late_request_meets_release;
                state.clients[n].releasing = repeats && state.is_late(n);
                Some(())
            }
            Crash(n) if self.crashes => {
                let call = state.clients[n].call;
                (!matches!(call, QueueCall::Idle | QueueCall::Over | QueueCall::Gone))
                    .then_some(())?;
                for other in (0..state.clients.len()).filter(|other| self.is_same(n, *other)) {
                    state.clients[other] =
                        ModelClient { call: QueueCall::Gone, ..ModelClient::default() };
                    // A request that is served after a crash has the effect of one served before.
                    state.late = state.late.filter(|(owner, _)| *owner != other);
                }
                Some(())
            }
            Tick => {
                state.tick(self.accepted_term());
                Some(())
            }
            TimeOut(_) | ServeRelease(_) | Crash(_) => None,
        }
    }

    /// A client sends a request.
    fn send(&self, state: &mut QueueState, n: usize, action: QueueAction) -> Option<()> {
        // Clients begin in order. This excludes no behaviour, because all clients are alike.
        let is_first = n == 0 || state.clients[n - 1].call != QueueCall::Idle;
        let client = &mut state.clients[n];
        (client.awaits_nothing() && client.requests < self.requests[n]).then_some(())?;
        let request = match (action, &mut client.call) {
            (QueueAction::Take(_), _) if !self.takes => return None,
            (QueueAction::Take(_) | QueueAction::Register(_), QueueCall::Idle) if is_first => {
                client.call =
                    QueueCall::Waiting { ticket: None, basis: self.accepted_term(), due: true };
                if action == QueueAction::Take(n) {
                    QueueRequest::Take
                } else {
                    QueueRequest::Register
                }
            }
            (QueueAction::Register(_), QueueCall::Waiting { basis, due: true, .. }) => {
                *basis = if self.basis_is_answered { *basis } else { 0 };
                QueueRequest::Register
            }
            (
                QueueAction::Check(_),
                QueueCall::Waiting { ticket: Some(ticket), basis, due: false },
            ) if self.checks => {
                *basis = if self.basis_is_answered { *basis } else { 0 };
                QueueRequest::Check(*ticket)
            }
            (QueueAction::Renew(_), QueueCall::Held { valid: 1.. }) if self.renews => {
                QueueRequest::Renew
            }
            _ => return None,
        };
        (client.request, client.requests) = (Some((request, 0)), client.requests + 1);
        Some(())
    }

    /// A client receives a reply.
    fn receive(&self, client: &mut ModelClient) -> Option<()> {
        let (reply, age) = client.reply.take()?;
        match (&mut client.call, reply) {
            (QueueCall::Waiting { .. }, QueueReply::Granted) if age < TERM => {
                client.call = QueueCall::Held { valid: TERM - age };
            }
            (QueueCall::Waiting { due, .. }, QueueReply::Granted | QueueReply::Refused) => {
                *due = true;
            }
            (QueueCall::Waiting { .. }, QueueReply::Queued(ticket)) => {
                let basis = if self.basis_from_sending { age } else { 0 };
                client.call = QueueCall::Waiting { ticket: Some(ticket), basis, due: false };
            }
            (QueueCall::Held { valid }, QueueReply::Granted) => *valid = (*valid).max(TERM - age),
            (QueueCall::Held { .. }, _) => {
                (client.call, client.releasing) = (QueueCall::Over, true);
            }
            (QueueCall::Idle | QueueCall::Over | QueueCall::Gone, _) => {}
        }
        Some(())
    }

    /// A client gets the message that was sent first, or the message is lost.
    fn take_message(&self, state: &mut QueueState, n: usize, action: QueueAction) -> Option<()> {
        let client = &mut state.clients[n];
        (!client.messages.is_empty()).then_some(())?;
        let told = client.messages.remove(0);
        match (action, &mut client.call) {
            (QueueAction::Accept(_), QueueCall::Waiting { ticket: Some(ticket), basis, .. })
                if *ticket == told || !self.tickets_are_compared =>
            {
                let left = self.accepted_term().saturating_sub(*basis);
                (left > 0).then_some(())?;
                let valid = if self.deadline_from_basis { left } else { self.accepted_term() };
                client.call = QueueCall::Held { valid };
                state.abandon(n);
                Some(())
            }
            (QueueAction::Dismiss(_), QueueCall::Waiting { due, .. }) => {
                // A request in flight may have been served before the transfer.
                *due = true;
                state.abandon(n);
                Some(())
            }
            (QueueAction::Dismiss(_), QueueCall::Held { .. } | QueueCall::Over) => {
                client.releasing |= !self.other_messages_are_ignored;
                Some(())
            }
            (QueueAction::LoseMessage(_), _) => {
                if let Some(key) = state.key.as_mut().filter(|key| key.owner == n) {
                    key.told = false;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// The term that a client reads in a message.
    fn accepted_term(&self) -> u8 {
        if self.transfer_term_is_read { TRANSFER_TERM } else { TERM }
    }

    /// The store executes a request.
    fn serve(&self, state: &mut QueueState, n: usize, request: QueueRequest) -> QueueReply {
        match (request, state.key) {
            (QueueRequest::Take, None) => state.grant(n, true),
            (QueueRequest::Register | QueueRequest::Renew, Some(key)) if key.owner == n => {
                state.grant(n, false)
            }
            (QueueRequest::Register, Some(_)) => state.enqueue(n),
            (QueueRequest::Register, None) => {
                state.queue.retain(|(queued, _)| {
                    *queued == n
                        || state.clients[*queued].call != QueueCall::Gone
                        || !self.gone_are_skipped
                });
                if state.queue.first().is_none_or(|(first, _)| *first == n) {
                    return state.grant(n, false);
                }
                state.transfer(self.gone_are_skipped);
                state.enqueue(n)
            }
            (QueueRequest::Check(ticket), key) => {
                let by_other = key.is_some_and(|key| key.owner != n) || !self.checks_see_the_key;
                let queued = by_other && state.queue.contains(&(n, ticket));
                if queued { QueueReply::Queued(ticket) } else { QueueReply::Refused }
            }
            (QueueRequest::Take | QueueRequest::Renew, _) => QueueReply::Refused,
        }
    }

    fn release(&self, state: &mut QueueState, n: usize) {
        let keeps_place = state.has_key(n) && !self.releases_remove_places;
        state.queue.retain(|(queued, _)| *queued != n || keeps_place);
        if state.has_key(n) {
            state.key = None;
            if !self.claims_keep_order {
                let of_process = |(other, _): &(usize, _)| self.is_same(n, *other);
                if let Some(place) = state.queue.iter().position(of_process) {
                    state.bring_forward(place);
                }
            }
            if self.releases_transfer {
                state.transfer(self.gone_are_skipped);
            }
        }
    }

    /// Whether two clients are calls of the same process.
    fn is_same(&self, one: usize, other: usize) -> bool {
        let process = |n: usize| self.processes.get(n).copied().unwrap_or(n);
        process(one) == process(other)
    }
}
