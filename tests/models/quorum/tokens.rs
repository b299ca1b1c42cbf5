//! The fencing tokens of the holders of one lock, one after the other.

use stateright::{Model, Property};

use super::SERVERS;

/// The token of each holder is higher than those of all earlier holders.
const TOKENS_RISE: &str = "tokens rise";

/// The shortest hold, in ticks. Tokens rise no faster than the clocks: by at most two in a hold.
const HOLD: u8 = 2;

/// How long a server does not vote after a restart.
const QUARANTINE: u8 = 4;

/// Holders that get a token from any majority of the servers.
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
    quarantine: [u8; SERVERS],
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
        state.quarantine = state.quarantine.map(|left| left.saturating_sub(ticks));
    }

    /// Whether a token is not too far ahead of the clock of a server.
    fn fits(&self, state: &TokenState, server: usize, token: u8) -> bool {
        !self.fits_clocks || token < state.ticks + self.ahead[server] + QUARANTINE
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
        let (last, quarantine, is_violated) = ([0; SERVERS], [0; SERVERS], false);
        vec![TokenState { last, quarantine, ticks: 0, restarts: 0, token: 0, is_violated }]
    }

    fn actions(&self, state: &TokenState, steps: &mut Vec<TokenStep>) {
        if state.ticks >= self.ticks {
            return;
        }
        let votes = |majority: &&[usize; 2]| majority.iter().all(|it| state.quarantine[*it] == 0);
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
                next.quarantine[server] = if self.waits_after_restart { QUARANTINE } else { 0 };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TOKENS_RISE, |_, state: &TokenState| !state.is_violated),
            Property::sometimes("a server votes again after a restart", |_, state: &TokenState| {
                state.restarts > 0 && state.quarantine == [0; SERVERS] && state.token > 0
            }),
        ]
    }
}

mod tests {
    use super::*;
    use crate::check::{holds, violates};

    fn tokens_without(drop: impl Fn(&mut TokenRounds)) -> TokenRounds {
        let mut model = TokenRounds::default();
        drop(&mut model);
        model
    }

    #[test]
    fn tokens_of_any_majorities_rise() {
        holds(TokenRounds::default(), 5_000);
    }

    #[test]
    fn tokens_rise_although_the_clocks_differ_by_more_than_a_quarantine() {
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
