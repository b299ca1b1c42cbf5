//! Locks that a majority of three servers has to grant, while requests are late and a server loses its data.
//!
//! A client sends its claim to all servers at once. With a majority of votes, it has the lock until its lease ends, which
//! counts from before the requests. Otherwise it undoes the attempt: it releases the lock at all servers, and may try
//! again. A renewal counts in the same way: a majority has to extend the lease, which counts from before the requests. A
//! release that reaches a server before a claim that is still on its way is repeated. A server that has restarted has
//! lost its locks, and does not vote for the length of a lease. When a majority has extended a lease, a new claim goes to a server
//! that did not have the lock: with its vote, a later renewal may count without one of the others.
//!
//! Requests arrive in any order, at any time, also after their client has given up. Time passes for all at once. The
//! servers do not differ, so states that are equal apart from their order are one.

mod tests;
mod tokens;

use stateright::{Model, Property};

/// No two clients have the lock at the same time.
const ONE_HOLDER: &str = "a majority has one holder";
/// When nothing is on its way, and all clients are done, no server has a lock.
const VOTES_FREED: &str = "no vote is left";

const SERVERS: usize = 3;
/// All servers, one bit each.
const ALL: u8 = 0b111;
/// The length of a lease, in ticks.
const TERM: u8 = 2;
/// The most attempts of a client.
const ATTEMPTS: usize = 2;

/// Clients that want one lock, and what protects it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct QuorumModel {
    /// The number of attempts of each client.
    pub(crate) attempts: Vec<u8>,
    /// The number of renewals of a hold of each client.
    pub(crate) renewals: Vec<u8>,
    pub(crate) ticks: u8,
    pub(crate) restarts: u8,
    /// How often a server loses its votes without a restart, so that it votes again at once.
    pub(crate) losses: u8,
    /// The votes that a grant needs.
    pub(crate) majority: u32,
    /// The servers that have to extend a lease, so that a renewal counts.
    pub(crate) renewal_majority: u32,
    /// A lease counts from before its claims, and not from the last answer.
    pub(crate) from_sending: bool,
    /// A renewed lease counts from before its renewals, and not from the last answer.
    pub(crate) renewed_from_sending: bool,
    /// A server that has restarted does not vote for the length of a lease.
    pub(crate) waits_after_restart: bool,
    /// An attempt without a majority is undone,
    pub(crate) undoes: bool,
    /// also at servers that have not answered,
    pub(crate) undoes_unanswered: bool,
    /// and again if the claim is still on its way.
    pub(crate) repeats_undo: bool,
    /// Each attempt has an owner of its own.
    pub(crate) owner_per_attempt: bool,
    /// A renewal creates the lock at a server that does not have it.
    pub(crate) recreates: bool,
    /// When a renewal counts, new claims go to the servers that did not have the lock.
    pub(crate) restores: bool,
}

impl Default for QuorumModel {
    fn default() -> Self {
        Self {
            attempts: vec![1, 1],
            renewals: vec![0, 0],
            ticks: 2,
            restarts: 0,
            losses: 0,
            majority: 2,
            renewal_majority: 2,
            from_sending: true,
            renewed_from_sending: true,
            waits_after_restart: true,
            undoes: true,
            undoes_unanswered: true,
            repeats_undo: true,
            owner_per_attempt: true,
            recreates: false,
            restores: true,
        }
    }
}

/// The owner of a lock: a client, and one of its attempts.
type VoteOwner = (usize, usize);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct VotingServer {
    owner: Option<VoteOwner>,
    /// The ticks until the lock expires.
    left: u8,
    /// The ticks until the server votes.
    quarantine: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum VotePhase {
    #[default]
    Idle,
    Asking,
    Holding,
    Over,
}

/// A client. Servers are sets of bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct QuorumClient {
    phase: VotePhase,
    attempt: usize,
    /// The ticks since the requests of the attempt, or of the last renewal that counts, were sent.
    age: u8,
    votes: u8,
    /// The claims of each attempt that are on their way.
    claims: [u8; ATTEMPTS],
    releases: [u8; ATTEMPTS],
    /// The renewals that are on their way, and the servers that have extended the lease.
    renewals: u8,
    renewed: u8,
    /// The servers that did not have the lock at the last renewal, and whether it counts.
    gone: u8,
    is_confirmed: bool,
    /// The ticks since the renewals were sent, while they may count.
    renewal_age: u8,
    renewals_sent: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QuorumState {
    servers: [VotingServer; SERVERS],
    clients: Vec<QuorumClient>,
    ticks: u8,
    restarts: u8,
    losses: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuorumStep {
    Begin(usize),
    Claim { client: usize, attempt: usize, server: usize },
    Grant(usize),
    GiveUp(usize),
    Release(usize),
    Free { client: usize, attempt: usize, server: usize },
    Renew(usize),
    Extend { client: usize, server: usize },
    Renewed(usize),
    Restore { client: usize, server: usize },
    Tick,
    Restart(usize),
    Lose(usize),
}

impl QuorumClient {
    /// The same client, if the servers change their places.
    fn permuted(mut self, order: [usize; SERVERS]) -> Self {
        let permuted = |set: u8| {
            let moved = |(at, from): (usize, &usize)| (set >> from & 1) << at;
            order.iter().enumerate().map(moved).sum()
        };
        self.votes = permuted(self.votes);
        self.claims = self.claims.map(permuted);
        self.releases = self.releases.map(permuted);
        (self.renewals, self.renewed) = (permuted(self.renewals), permuted(self.renewed));
        self.gone = permuted(self.gone);
        self
    }

    /// Nothing that the client has counted matters any more.
    fn forget_votes(&mut self) {
        (self.votes, self.age, self.renewed, self.renewal_age) = (0, 0, 0, 0);
        (self.gone, self.is_confirmed) = (0, false);
    }

    fn is_valid(&self) -> bool {
        self.phase == VotePhase::Holding && self.age < TERM
    }
}

/// All orders of the servers.
const ORDERS: [[usize; SERVERS]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl QuorumState {
    /// The first of the states that are equal to this one apart from the order of the servers.
    fn ordered(self) -> Self {
        let permuted = |order: [usize; SERVERS]| Self {
            servers: order.map(|from| self.servers[from]),
            clients: self.clients.iter().map(|client| client.permuted(order)).collect(),
            ..self
        };
        ORDERS.into_iter().map(permuted).min().expect("there are six")
    }
}

impl QuorumModel {
    /// The owner of an attempt.
    fn vote_owner(&self, client: usize, attempt: usize) -> VoteOwner {
        (client, if self.owner_per_attempt { attempt } else { 0 })
    }

    fn end_hold(client: &mut QuorumClient) {
        client.phase = VotePhase::Over;
        client.releases[client.attempt] |= ALL;
        client.forget_votes();
    }

    fn give_up(&self, client: &mut QuorumClient, attempts: u8) {
        let attempt = client.attempt;
        if self.undoes {
            client.releases[attempt] |= if self.undoes_unanswered { ALL } else { client.votes };
        }
        client.forget_votes();
        let is_last = attempt + 1 >= usize::from(attempts);
        client.phase = if is_last { VotePhase::Over } else { VotePhase::Idle };
        client.attempt += usize::from(!is_last);
    }

    fn tick(state: &mut QuorumState) {
        state.ticks += 1;
        for server in &mut state.servers {
            server.left = server.left.saturating_sub(1);
            if server.left == 0 {
                server.owner = None;
            }
            server.quarantine = server.quarantine.saturating_sub(1);
        }
        for client in &mut state.clients {
            if matches!(client.phase, VotePhase::Asking | VotePhase::Holding) {
                client.age = (client.age + 1).min(TERM);
            }
            if client.phase == VotePhase::Holding && client.renewals | client.renewed != 0 {
                client.renewal_age = (client.renewal_age + 1).min(TERM);
            }
            if client.phase == VotePhase::Holding && !client.is_valid() {
                Self::end_hold(client);
            }
        }
    }

    fn step(&self, state: &mut QuorumState, step: QuorumStep) {
        match step {
            QuorumStep::Begin(client) => {
                let client = &mut state.clients[client];
                (client.phase, client.age, client.votes) = (VotePhase::Asking, 0, 0);
                client.claims[client.attempt] = ALL;
            }
            QuorumStep::Claim { client, attempt, server } => {
                let own = self.vote_owner(client, attempt);
                let (client_state, voted) =
                    (&mut state.clients[client], &mut state.servers[server]);
                client_state.claims[attempt] &= !(1 << server);
                let is_free = voted.owner.is_none_or(|owner| owner == own);
                if is_free && voted.quarantine == 0 {
                    (voted.owner, voted.left) = (Some(own), TERM);
                    let is_current = client_state.attempt == attempt;
                    if is_current && client_state.phase == VotePhase::Asking {
                        client_state.votes |= 1 << server;
                    }
                }
            }
            QuorumStep::Grant(client) => {
                let client = &mut state.clients[client];
                client.phase = VotePhase::Holding;
                if !self.from_sending {
                    client.age = 0;
                }
            }
            QuorumStep::GiveUp(client) => {
                self.give_up(&mut state.clients[client], self.attempts[client]);
            }
            QuorumStep::Release(client) => Self::end_hold(&mut state.clients[client]),
            QuorumStep::Free { client, attempt, server } => {
                let own = self.vote_owner(client, attempt);
                let client_state = &mut state.clients[client];
                let is_late = client_state.claims[attempt] & (1 << server) != 0;
                if !is_late || !self.repeats_undo {
                    client_state.releases[attempt] &= !(1 << server);
                }
                let voted = &mut state.servers[server];
                if voted.owner == Some(own) {
                    (voted.owner, voted.left) = (None, 0);
                }
            }
            QuorumStep::Renew(client) => {
                let client = &mut state.clients[client];
                client.renewals_sent += 1;
                (client.renewals, client.renewed, client.renewal_age) = (ALL, 0, 0);
                (client.gone, client.is_confirmed) = (0, false);
            }
            QuorumStep::Extend { client, server } => {
                let own = self.vote_owner(client, state.clients[client].attempt);
                let (client_state, voted) =
                    (&mut state.clients[client], &mut state.servers[server]);
                client_state.renewals &= !(1 << server);
                if voted.owner == Some(own) || self.recreates && voted.owner.is_none() {
                    (voted.owner, voted.left) = (Some(own), TERM);
                    if client_state.phase == VotePhase::Holding {
                        client_state.renewed |= 1 << server;
                    }
                } else if self.restores && client_state.phase == VotePhase::Holding {
                    client_state.gone |= 1 << server;
                }
            }
            QuorumStep::Restore { client, server } => {
                let client = &mut state.clients[client];
                client.gone &= !(1 << server);
                client.claims[client.attempt] |= 1 << server;
            }
            QuorumStep::Renewed(client) => {
                let client = &mut state.clients[client];
                client.age = if self.renewed_from_sending { client.renewal_age } else { 0 };
                (client.renewed, client.is_confirmed) = (0, true);
            }
            QuorumStep::Tick => Self::tick(state),
            QuorumStep::Restart(server) => {
                state.restarts += 1;
                let quarantine = if self.waits_after_restart { TERM } else { 0 };
                state.servers[server] = VotingServer { quarantine, ..VotingServer::default() };
            }
            QuorumStep::Lose(server) => {
                state.losses += 1;
                let voted = &mut state.servers[server];
                (voted.owner, voted.left) = (None, 0);
            }
        }
    }

    fn steps_of(&self, number: usize, client: &QuorumClient, steps: &mut Vec<QuorumStep>) {
        match client.phase {
            VotePhase::Idle => steps.push(QuorumStep::Begin(number)),
            VotePhase::Asking => {
                if client.votes.count_ones() >= self.majority && client.age < TERM {
                    steps.push(QuorumStep::Grant(number));
                } else {
                    steps.push(QuorumStep::GiveUp(number));
                }
            }
            VotePhase::Holding => {
                steps.push(QuorumStep::Release(number));
                if client.renewals_sent < self.renewals[number] {
                    steps.push(QuorumStep::Renew(number));
                }
                let is_renewed = client.renewed.count_ones() >= self.renewal_majority;
                if is_renewed && client.renewal_age < TERM {
                    steps.push(QuorumStep::Renewed(number));
                }
                let gone = if client.is_confirmed { client.gone } else { 0 };
                for server in (0..SERVERS).filter(|server| gone & (1 << server) != 0) {
                    steps.push(QuorumStep::Restore { client: number, server });
                }
            }
            VotePhase::Over => {}
        }
        let on_their_way = |set: u8| (0..SERVERS).filter(move |server| set & (1 << server) != 0);
        for attempt in 0..ATTEMPTS {
            for server in on_their_way(client.claims[attempt]) {
                steps.push(QuorumStep::Claim { client: number, attempt, server });
            }
            for server in on_their_way(client.releases[attempt]) {
                steps.push(QuorumStep::Free { client: number, attempt, server });
            }
        }
        for server in on_their_way(client.renewals) {
            steps.push(QuorumStep::Extend { client: number, server });
        }
    }
}

impl Model for QuorumModel {
    type State = QuorumState;
    type Action = QuorumStep;

    fn init_states(&self) -> Vec<QuorumState> {
        let clients = vec![QuorumClient::default(); self.attempts.len()];
        let servers = Default::default();
        vec![QuorumState { servers, clients, ticks: 0, restarts: 0, losses: 0 }]
    }

    fn actions(&self, state: &QuorumState, steps: &mut Vec<QuorumStep>) {
        for (number, client) in state.clients.iter().enumerate() {
            self.steps_of(number, client, steps);
        }
        if state.ticks < self.ticks {
            steps.push(QuorumStep::Tick);
        }
        if state.restarts < self.restarts {
            steps.extend((0..SERVERS).map(QuorumStep::Restart));
        }
        if state.losses < self.losses {
            steps.extend((0..SERVERS).map(QuorumStep::Lose));
        }
    }

    fn next_state(&self, state: &QuorumState, step: QuorumStep) -> Option<QuorumState> {
        let mut next = state.clone();
        self.step(&mut next, step);
        Some(next.ordered())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &QuorumState| {
                state.clients.iter().filter(|client| client.is_valid()).count() <= 1
            }),
            Property::always(VOTES_FREED, |_, state: &QuorumState| {
                let is_quiet = state.clients.iter().all(|client| {
                    let on_their_way = client.claims.iter().chain(&client.releases);
                    client.phase == VotePhase::Over && on_their_way.sum::<u8>() == 0
                });
                !is_quiet || state.servers.iter().all(|server| server.owner.is_none())
            }),
            Property::sometimes("the vote is split", |_, state: &QuorumState| {
                state.clients.iter().all(|client| client.votes != 0)
            }),
            Property::sometimes("a late claim takes a vote", |_, state: &QuorumState| {
                let is_over = |client: usize| state.clients[client].phase == VotePhase::Over;
                state.servers.iter().any(|it| it.owner.is_some_and(|(client, _)| is_over(client)))
            }),
        ]
    }
}
