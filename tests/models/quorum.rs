//! Locks that a majority of three servers has to grant, while requests are late and a server loses its data.
//!
//! A client asks all servers at once. With a majority of votes, it has the lock until its lease ends, which counts from
//! before the requests. Otherwise it gives up: it frees the lock at all servers, and may try again. A release that
//! reaches a server before a claim that is still on its way is repeated. A server that has restarted has lost its
//! locks, and does not vote for the length of a lease.
//!
//! Requests arrive in any order, at any time, also after their client has given up. Time passes for all at once. The
//! servers do not differ, so states that are equal apart from their order are one.

use stateright::{Model, Property};

/// No two clients have the lock at the same time.
pub(crate) const ONE_HOLDER: &str = "a majority has one holder";
/// When nothing is on its way, and all clients are done, no server has a lock.
pub(crate) const VOTES_FREED: &str = "no vote is left";

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
pub(crate) struct Ballots {
    /// The number of attempts of each client.
    pub(crate) attempts: Vec<u8>,
    pub(crate) ticks: u8,
    pub(crate) restarts: u8,
    /// The number of renewals of each hold.
    pub(crate) renewals: u8,
    /// The votes that a grant or a renewal needs.
    pub(crate) majority: u32,
    /// A lease counts from before its requests, and not from the last answer.
    pub(crate) from_sending: bool,
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
}

impl Default for Ballots {
    fn default() -> Self {
        Self {
            attempts: vec![1, 1],
            ticks: 2,
            restarts: 0,
            renewals: 0,
            majority: 2,
            from_sending: true,
            waits_after_restart: true,
            undoes: true,
            undoes_unanswered: true,
            repeats_undo: true,
            owner_per_attempt: true,
            recreates: false,
        }
    }
}

/// The owner of a lock: a client, and one of its attempts.
type Voter = (usize, usize);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct VotingServer {
    owner: Option<Voter>,
    /// The ticks until the lock expires.
    left: u8,
    /// The ticks until the server votes.
    silent_for: u8,
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
struct VotedClient {
    phase: VotePhase,
    attempt: usize,
    /// The ticks since the requests of the attempt, or of the last renewal that counts, were sent.
    age: u8,
    votes: u8,
    /// The claims of each attempt that are on their way.
    claims: [u8; ATTEMPTS],
    releases: [u8; ATTEMPTS],
    renewals: u8,
    renewed: u8,
    renewal_age: u8,
    renewals_sent: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BallotState {
    servers: [VotingServer; SERVERS],
    clients: Vec<VotedClient>,
    ticks: u8,
    restarts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BallotStep {
    Begin(usize),
    Claim { client: usize, attempt: usize, server: usize },
    Grant(usize),
    GiveUp(usize),
    Release(usize),
    Free { client: usize, attempt: usize, server: usize },
    Renew(usize),
    Extend { client: usize, server: usize },
    Renewed(usize),
    Tick,
    Restart(usize),
}

impl VotedClient {
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
        self
    }

    fn is_valid(&self) -> bool {
        self.phase == VotePhase::Holding && self.age < TERM
    }
}

/// All orders of the servers.
const ORDERS: [[usize; SERVERS]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl BallotState {
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

impl Ballots {
    /// The owner of an attempt.
    fn voter(&self, client: usize, attempt: usize) -> Voter {
        (client, if self.owner_per_attempt { attempt } else { 0 })
    }

    fn end_hold(client: &mut VotedClient) {
        client.phase = VotePhase::Over;
        client.releases[client.attempt] |= ALL;
    }

    fn give_up(&self, client: &mut VotedClient, attempts: u8) {
        let attempt = client.attempt;
        if self.undoes {
            client.releases[attempt] |= if self.undoes_unanswered { ALL } else { client.votes };
        }
        (client.votes, client.age) = (0, 0);
        let is_last = attempt + 1 >= usize::from(attempts);
        client.phase = if is_last { VotePhase::Over } else { VotePhase::Idle };
        client.attempt += usize::from(!is_last);
    }

    fn tick(state: &mut BallotState) {
        state.ticks += 1;
        for server in &mut state.servers {
            server.left = server.left.saturating_sub(1);
            if server.left == 0 {
                server.owner = None;
            }
            server.silent_for = server.silent_for.saturating_sub(1);
        }
        for client in &mut state.clients {
            if matches!(client.phase, VotePhase::Asking | VotePhase::Holding) {
                client.age = (client.age + 1).min(TERM);
                client.renewal_age = (client.renewal_age + 1).min(TERM);
            }
            if client.phase == VotePhase::Holding && !client.is_valid() {
                Self::end_hold(client);
            }
        }
    }

    fn step(&self, state: &mut BallotState, step: BallotStep) {
        match step {
            BallotStep::Begin(client) => {
                let client = &mut state.clients[client];
                (client.phase, client.age, client.votes) = (VotePhase::Asking, 0, 0);
                client.claims[client.attempt] = ALL;
            }
            BallotStep::Claim { client, attempt, server } => {
                let own = self.voter(client, attempt);
                let (candidate, voted) = (&mut state.clients[client], &mut state.servers[server]);
                candidate.claims[attempt] &= !(1 << server);
                let is_free = voted.owner.is_none_or(|owner| owner == own);
                if is_free && voted.silent_for == 0 {
                    (voted.owner, voted.left) = (Some(own), TERM);
                    let is_current = candidate.attempt == attempt;
                    if is_current && candidate.phase == VotePhase::Asking {
                        candidate.votes |= 1 << server;
                    }
                }
            }
            BallotStep::Grant(client) => {
                let client = &mut state.clients[client];
                client.phase = VotePhase::Holding;
                if !self.from_sending {
                    client.age = 0;
                }
            }
            BallotStep::GiveUp(client) => {
                self.give_up(&mut state.clients[client], self.attempts[client]);
            }
            BallotStep::Release(client) => Self::end_hold(&mut state.clients[client]),
            BallotStep::Free { client, attempt, server } => {
                let own = self.voter(client, attempt);
                let candidate = &mut state.clients[client];
                let is_late = candidate.claims[attempt] & (1 << server) != 0;
                if !is_late || !self.repeats_undo {
                    candidate.releases[attempt] &= !(1 << server);
                }
                let voted = &mut state.servers[server];
                if voted.owner == Some(own) {
                    (voted.owner, voted.left) = (None, 0);
                }
            }
            BallotStep::Renew(client) => {
                let client = &mut state.clients[client];
                client.renewals_sent += 1;
                (client.renewals, client.renewed, client.renewal_age) = (ALL, 0, 0);
            }
            BallotStep::Extend { client, server } => {
                let own = self.voter(client, state.clients[client].attempt);
                let (candidate, voted) = (&mut state.clients[client], &mut state.servers[server]);
                candidate.renewals &= !(1 << server);
                if voted.owner == Some(own) || self.recreates && voted.owner.is_none() {
                    (voted.owner, voted.left) = (Some(own), TERM);
                    candidate.renewed |= 1 << server;
                }
            }
            BallotStep::Renewed(client) => {
                let client = &mut state.clients[client];
                (client.age, client.renewed) = (client.renewal_age, 0);
            }
            BallotStep::Tick => Self::tick(state),
            BallotStep::Restart(server) => {
                state.restarts += 1;
                let silent_for = if self.waits_after_restart { TERM } else { 0 };
                state.servers[server] = VotingServer { silent_for, ..VotingServer::default() };
            }
        }
    }

    fn steps_of(&self, number: usize, client: &VotedClient, steps: &mut Vec<BallotStep>) {
        match client.phase {
            VotePhase::Idle => steps.push(BallotStep::Begin(number)),
            VotePhase::Asking => {
                if client.votes.count_ones() >= self.majority && client.age < TERM {
                    steps.push(BallotStep::Grant(number));
                } else {
                    steps.push(BallotStep::GiveUp(number));
                }
            }
            VotePhase::Holding => {
                steps.push(BallotStep::Release(number));
                if client.renewals_sent < self.renewals {
                    steps.push(BallotStep::Renew(number));
                }
                let is_renewed = client.renewed.count_ones() >= self.majority;
                if is_renewed && client.renewal_age < TERM {
                    steps.push(BallotStep::Renewed(number));
                }
            }
            VotePhase::Over => {}
        }
        let on_their_way = |set: u8| (0..SERVERS).filter(move |server| set & (1 << server) != 0);
        for attempt in 0..ATTEMPTS {
            for server in on_their_way(client.claims[attempt]) {
                steps.push(BallotStep::Claim { client: number, attempt, server });
            }
            for server in on_their_way(client.releases[attempt]) {
                steps.push(BallotStep::Free { client: number, attempt, server });
            }
        }
        for server in on_their_way(client.renewals) {
            steps.push(BallotStep::Extend { client: number, server });
        }
    }
}

impl Model for Ballots {
    type State = BallotState;
    type Action = BallotStep;

    fn init_states(&self) -> Vec<BallotState> {
        let clients = vec![VotedClient::default(); self.attempts.len()];
        vec![BallotState { servers: Default::default(), clients, ticks: 0, restarts: 0 }]
    }

    fn actions(&self, state: &BallotState, steps: &mut Vec<BallotStep>) {
        for (number, client) in state.clients.iter().enumerate() {
            self.steps_of(number, client, steps);
        }
        if state.ticks < self.ticks {
            steps.push(BallotStep::Tick);
        }
        if state.restarts < self.restarts {
            steps.extend((0..SERVERS).map(BallotStep::Restart));
        }
    }

    fn next_state(&self, state: &BallotState, step: BallotStep) -> Option<BallotState> {
        let mut next = state.clone();
        self.step(&mut next, step);
        Some(next.ordered())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &BallotState| {
                state.clients.iter().filter(|client| client.is_valid()).count() <= 1
            }),
            Property::always(VOTES_FREED, |_, state: &BallotState| {
                let is_quiet = state.clients.iter().all(|client| {
                    let on_their_way = client.claims.iter().chain(&client.releases);
                    client.phase == VotePhase::Over && on_their_way.sum::<u8>() == 0
                });
                !is_quiet || state.servers.iter().all(|server| server.owner.is_none())
            }),
            Property::sometimes("the votes are divided", |_, state: &BallotState| {
                state.clients.iter().all(|client| client.votes != 0)
            }),
            Property::sometimes("a late claim takes a vote", |_, state: &BallotState| {
                let is_over = |client: usize| state.clients[client].phase == VotePhase::Over;
                state.servers.iter().any(|it| it.owner.is_some_and(|(client, _)| is_over(client)))
            }),
        ]
    }
}

/// The fencing tokens of the holders of one lock, one after the other.
pub(crate) const TOKENS_RISE: &str = "tokens rise";

/// The shortest hold, in ticks. Tokens rise no faster than the clocks: by at most two in a hold.
const HOLD: u8 = 2;

/// For how long a server does not vote after a restart.
const SILENCE: u8 = 4;

/// Holders that ask any majority of the servers for a token.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one rule")]
pub(crate) struct TokenRounds {
    /// How far the clock of each server is ahead.
    pub(crate) ahead: [u8; SERVERS],
    pub(crate) ticks: u8,
    pub(crate) restarts: u8,
    /// The token is written to a majority before it is used.
    pub(crate) writes_back: bool,
    /// A token is at least the time of the server.
    pub(crate) from_clock: bool,
    /// A server that has restarted does not vote for some time.
    pub(crate) waits_after_restart: bool,
    /// A token is ahead of the clocks of the servers that have it by less than this time.
    pub(crate) fits_clocks: bool,
}

impl Default for TokenRounds {
    fn default() -> Self {
        let (writes_back, from_clock, waits_after_restart) = (true, true, true);
        let fits_clocks = true;
        Self {
            ahead: [0, 3, 1],
            ticks: 12,
            restarts: 1,
            writes_back,
            from_clock,
            waits_after_restart,
            fits_clocks,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TokenState {
    last: [u8; SERVERS],
    silent_for: [u8; SERVERS],
    ticks: u8,
    restarts: u8,
    /// The token of the last holder, and whether it was higher than those before.
    token: u8,
    is_violated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenStep {
    /// A holder gets its token from the first majority, and writes it to the second one.
    Hold([usize; 2], [usize; 2]),
    Tick,
    Restart(usize),
}

const MAJORITIES: [[usize; 2]; 3] = [[0, 1], [0, 2], [1, 2]];

impl TokenRounds {
    fn pass(state: &mut TokenState, ticks: u8) {
        state.ticks += ticks;
        state.silent_for = state.silent_for.map(|silent_for| silent_for.saturating_sub(ticks));
    }

    /// Whether a token is not too far ahead of the clock of a server.
    fn fits(&self, state: &TokenState, server: usize, token: u8) -> bool {
        !self.fits_clocks || token < state.ticks + self.ahead[server] + SILENCE
    }

    /// What a server issues: above its last token, and at least this one.
    fn issue(&self, state: &mut TokenState, server: usize, at_least: u8) -> u8 {
        let time = if self.from_clock { state.ticks + self.ahead[server] } else { 0 };
        let token = (state.last[server] + 1).max(time).max(at_least);
        state.last[server] = token;
        token
    }
}

impl Model for TokenRounds {
    type State = TokenState;
    type Action = TokenStep;

    fn init_states(&self) -> Vec<TokenState> {
        let (last, silent_for, is_violated) = ([0; SERVERS], [0; SERVERS], false);
        vec![TokenState { last, silent_for, ticks: 0, restarts: 0, token: 0, is_violated }]
    }

    fn actions(&self, state: &TokenState, steps: &mut Vec<TokenStep>) {
        if state.ticks >= self.ticks {
            return;
        }
        let votes = |majority: &&[usize; 2]| majority.iter().all(|it| state.silent_for[*it] == 0);
        for first in MAJORITIES.iter().filter(votes) {
            for second in MAJORITIES.iter().filter(votes) {
                steps.push(TokenStep::Hold(*first, *second));
            }
        }
        steps.push(TokenStep::Tick);
        if state.restarts < self.restarts {
            steps.extend((0..SERVERS).map(TokenStep::Restart));
        }
    }

    fn next_state(&self, state: &TokenState, step: TokenStep) -> Option<TokenState> {
        let mut next = state.clone();
        match step {
            TokenStep::Hold(first, second) => {
                let issued = first.map(|server| self.issue(&mut next, server, 0));
                let token = issued[0].max(issued[1]);
                let fits = first.iter().zip(issued).chain(second.iter().map(|it| (it, token)));
                if !fits.into_iter().all(|(server, token)| self.fits(state, *server, token)) {
                    // The hold gets no token, and writes none.
                    return None;
                }
                if self.writes_back {
                    for server in second {
                        self.issue(&mut next, server, token);
                    }
                }
                next.is_violated |= token <= state.token;
                next.token = token;
                Self::pass(&mut next, HOLD);
            }
            TokenStep::Tick => {
                Self::pass(&mut next, 1);
            }
            TokenStep::Restart(server) => {
                next.restarts += 1;
                next.last[server] = 0;
                next.silent_for[server] = if self.waits_after_restart { SILENCE } else { 0 };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TOKENS_RISE, |_, state: &TokenState| !state.is_violated),
            Property::sometimes("a server votes again after a restart", |_, state: &TokenState| {
                state.restarts > 0 && state.silent_for == [0; SERVERS] && state.token > 0
            }),
        ]
    }
}

mod tests {
    use super::*;
    use crate::check::{holds, violates};

    fn without(drop: impl Fn(&mut Ballots)) -> Ballots {
        let mut model = Ballots::default();
        drop(&mut model);
        model
    }

    fn tokens_without(drop: impl Fn(&mut TokenRounds)) -> TokenRounds {
        let mut model = TokenRounds::default();
        drop(&mut model);
        model
    }

    #[test]
    fn a_majority_has_one_holder_and_no_vote_is_left() {
        holds(Ballots { ticks: 3, ..Ballots::default() }, 10_000);
    }

    #[test]
    fn a_majority_has_one_holder_and_no_vote_is_left_by_earlier_attempts() {
        holds(Ballots { attempts: vec![2, 1], ticks: 0, ..Ballots::default() }, 10_000);
    }

    #[test]
    fn a_majority_has_one_holder_although_a_server_loses_its_data() {
        holds(Ballots { restarts: 1, ..Ballots::default() }, 100_000);
    }

    #[test]
    fn a_majority_has_one_holder_although_holds_are_renewed() {
        holds(Ballots { renewals: 1, ticks: 0, ..Ballots::default() }, 10_000);
    }

    #[test]
    fn with_grants_by_a_minority_there_are_two_holders() {
        violates(without(|model| model.majority = 1), ONE_HOLDER);
    }

    #[test]
    fn a_server_that_votes_at_once_after_a_restart_leads_to_two_holders() {
        let early = without(|model| model.waits_after_restart = false);
        violates(Ballots { restarts: 1, ..early }, ONE_HOLDER);
    }

    #[test]
    fn a_lease_that_counts_from_the_last_answer_leads_to_two_holders() {
        violates(without(|model| model.from_sending = false), ONE_HOLDER);
    }

    #[test]
    fn with_one_owner_for_all_attempts_a_late_undo_leads_to_two_holders() {
        let one_owner = without(|model| model.owner_per_attempt = false);
        violates(Ballots { attempts: vec![2, 1], ticks: 0, ..one_owner }, ONE_HOLDER);
    }

    #[test]
    fn an_attempt_that_is_not_undone_leaves_votes() {
        let model = without(|model| model.undoes = false);
        violates(Ballots { ticks: 0, ..model }, VOTES_FREED);
    }

    #[test]
    fn an_undo_at_the_servers_that_have_answered_alone_leaves_votes() {
        let model = without(|model| model.undoes_unanswered = false);
        violates(Ballots { ticks: 0, ..model }, VOTES_FREED);
    }

    #[test]
    fn an_undo_that_is_not_repeated_leaves_votes() {
        let model = without(|model| model.repeats_undo = false);
        violates(Ballots { ticks: 0, ..model }, VOTES_FREED);
    }

    #[test]
    fn a_renewal_that_creates_a_lock_leaves_votes() {
        let recreates = without(|model| model.recreates = true);
        violates(Ballots { renewals: 1, ticks: 0, ..recreates }, VOTES_FREED);
    }

    #[test]
    fn tokens_of_any_majorities_rise() {
        holds(TokenRounds::default(), 5_000);
    }

    #[test]
    fn tokens_rise_although_the_clocks_differ_by_more_than_a_server_is_silent() {
        holds(TokenRounds { ahead: [0, 9, 1], ..TokenRounds::default() }, 1_000);
    }

    #[test]
    fn tokens_that_are_far_ahead_of_the_clocks_go_back() {
        let model = tokens_without(|model| model.fits_clocks = false);
        violates(TokenRounds { ahead: [0, 9, 1], ..model }, TOKENS_RISE);
    }

    #[test]
    fn a_token_that_is_not_written_back_goes_back() {
        violates(tokens_without(|model| model.writes_back = false), TOKENS_RISE);
    }

    #[test]
    fn tokens_without_a_clock_go_back_after_a_restart() {
        violates(tokens_without(|model| model.from_clock = false), TOKENS_RISE);
    }

    #[test]
    fn tokens_go_back_if_a_server_votes_at_once_after_a_restart() {
        violates(tokens_without(|model| model.waits_after_restart = false), TOKENS_RISE);
    }
}
