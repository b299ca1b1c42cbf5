//! Counting the answers of the stores of a quorum: plain data.
//!
//! A majority decides. The decision is known as soon as the answers that are missing could not change it.

use std::time::Duration;

use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Acquired, Left, StoreError};

/// The number of stores that decide, of so many.
pub(super) const fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// The failures of stores, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<(usize, StoreError)>);

impl Failures {
    pub(super) fn add(&mut self, number: usize, error: StoreError) {
        self.0.push((number, error));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Why the request of this store has failed, if it has.
    pub(super) fn of(&self, number: usize) -> Option<&StoreError> {
        self.0.iter().find(|(failed, _)| *failed == number).map(|(_, error)| error)
    }

    /// Whether the request of this store has failed.
    pub(super) fn contains(&self, number: usize) -> bool {
        self.of(number).is_some()
    }

    /// Whether the request of this store has failed, and may have taken effect.
    pub(super) fn may_have_run(&self, number: usize) -> bool {
        self.of(number).is_some_and(StoreError::may_have_run)
    }

    /// The error of a request that too few of these stores have answered. A permanent error counts if so many
    /// stores have given one that the others are no majority.
    pub(super) fn into_error(self, names: &[String], attempted: &str) -> StoreError {
        let count = names.len();
        let is_permanent =
            |error: &StoreError| !matches!(error, StoreError::Refused(_) | StoreError::Unknown(_));
        let permanent = self.0.iter().filter(|(_, error)| is_permanent(error)).count();
        if count - permanent < majority(count)
            && let Some((number, error)) = self.0.iter().find(|(_, error)| is_permanent(error))
        {
            return of_server(&names[*number], error.clone());
        }
        let may_have_run = self.0.iter().any(|(_, error)| error.may_have_run());
        let causes: Vec<String> =
            self.0.iter().map(|(number, error)| format!("{}: {error}", names[*number])).collect();
        let cause = format!(
            "fewer than {} of the {count} servers of the quorum have {attempted}: {}",
            majority(count),
            causes.join("; ")
        );
        if may_have_run { StoreError::Unknown(cause) } else { StoreError::Refused(cause) }
    }
}

/// A permanent error with the name of its server.
fn of_server(name: &str, error: StoreError) -> StoreError {
    match error {
        StoreError::Denied(cause) => StoreError::Denied(format!("{name}: {cause}")),
        // The problems of the quorum itself name the servers.
        StoreError::Config { option, problem } if option != "quorum" => {
            StoreError::Config { option, problem: format!("{name}: {problem}") }
        }
        error => error,
    }
}

/// The answers to a claim.
#[derive(Debug)]
pub(super) struct ClaimTally {
    stores: usize,
    /// The stores that have granted it.
    pub(super) granted: Vec<usize>,
    /// The rest of the lease of another owner, for each store that has one.
    busy: Vec<Left>,
    pub(super) failures: Failures,
}

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimDecision {
    Granted,
    /// Enough stores have answered, and others have the lock at some of them.
    Busy(Left),
    TooFewAnswers,
}

impl ClaimTally {
    pub(super) fn new(stores: usize) -> Self {
        Self { stores, granted: Vec::new(), busy: Vec::new(), failures: Failures::default() }
    }

    pub(super) fn add(&mut self, number: usize, answer: Result<Acquired, StoreError>) {
        match answer {
            Ok(Acquired::Granted(_)) => self.granted.push(number),
            Ok(Acquired::Busy(left)) => self.busy.push(left),
            // The stores have no queues in this layout.
            Ok(Acquired::Queued(queued)) => self.busy.push(queued.left),
            Err(error) => self.failures.add(number, error),
        }
    }

    fn is_granted(&self) -> bool {
        let enough = if Safeguard::MajorityGrants.is_on() { majority(self.stores) } else { 1 };
        self.granted.len() >= enough
    }

    /// Whether the decision is known, or no more answers come.
    pub(super) fn is_decided(&self) -> bool {
        let (most, answered) = (majority(self.stores), self.granted.len() + self.busy.len());
        let open = self.stores - answered - self.failures.len();
        if self.is_granted() || open == 0 {
            return true;
        }
        let is_lost = self.granted.len() + open < most;
        is_lost && (answered >= most || answered + open < most)
    }

    /// Whether some stores have granted it, and others have granted the lock to another owner.
    pub(super) fn is_split(&self) -> bool {
        !self.granted.is_empty() && !self.busy.is_empty()
    }

    pub(super) fn decision(&self) -> ClaimDecision {
        if self.is_granted() {
            ClaimDecision::Granted
        } else if self.granted.len() + self.busy.len() >= majority(self.stores) {
            ClaimDecision::Busy(self.left())
        } else {
            ClaimDecision::TooFewAnswers
        }
    }

    /// The time until a majority is free, by the answers of these stores.
    fn left(&self) -> Left {
        if self.busy.contains(&Left::Unknown) {
            return Left::Unknown;
        }
        let free = self.granted.iter().map(|_| Some(Duration::ZERO));
        let busy = self.busy.iter().map(|left| match left {
            Left::Time(left) => Some(*left),
            Left::Forever | Left::Unknown => None,
        });
        left_of_majority(free.chain(busy).collect(), self.stores)
    }
}

/// The time until so many of these leases have ended that a majority of `stores` is free. `None` is a lease that never
/// ends.
pub(super) fn left_of_majority(mut leases: Vec<Option<Duration>>, stores: usize) -> Left {
    leases.sort_by_key(|left| left.unwrap_or(Duration::MAX));
    match leases.get(majority(stores) - 1) {
        Some(Some(left)) => Left::Time(*left),
        Some(None) => Left::Forever,
        None => Left::Unknown,
    }
}

/// The answers to a request about a hold.
#[derive(Debug)]
pub(super) struct HoldTally<T> {
    stores: usize,
    /// The answers of the stores that still have the hold.
    pub(super) held: Vec<(usize, T)>,
    /// The stores that do not have the key.
    pub(super) gone: Vec<usize>,
    taken: usize,
    /// The number of failures that are refusals which last.
    refused: usize,
    pub(super) failures: Failures,
}

/// The answer of one store about a hold.
#[derive(Debug)]
pub(super) enum HoldVote<T> {
    Held(T),
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
    /// The store refuses the request, and would refuse it again.
    Refused(String),
}

/// The result of a request about a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldDecision {
    /// A majority still has it.
    Held,
    /// A majority no longer has it; the key is free at most of these stores.
    Gone,
    /// The same; the key has another owner at most of these stores.
    Taken,
    TooFewAnswers,
}

impl<T> HoldTally<T> {
    pub(super) fn new(stores: usize) -> Self {
        let (held, failures) = (Vec::new(), Failures::default());
        Self { stores, held, gone: Vec::new(), taken: 0, refused: 0, failures }
    }

    pub(super) fn add(&mut self, number: usize, vote: Result<HoldVote<T>, StoreError>) {
        match vote {
            Ok(HoldVote::Held(answer)) => self.held.push((number, answer)),
            Ok(HoldVote::Gone) => self.gone.push(number),
            Ok(HoldVote::Taken) => self.taken += 1,
            Ok(HoldVote::Refused(cause)) => {
                self.refused += 1;
                self.failures.add(number, StoreError::Refused(cause));
            }
            Err(error) => self.failures.add(number, error),
        }
    }

    /// The number of stores that need to have the hold.
    fn enough(&self) -> usize {
        if Safeguard::MajorityRenews.is_on() { majority(self.stores) } else { 1 }
    }

    fn is_lost(&self) -> bool {
        self.stores - (self.gone.len() + self.taken) < self.enough()
    }

    /// Whether so many stores refuse the request that the others are no majority.
    pub(super) fn is_refused(&self) -> bool {
        self.stores - self.refused < majority(self.stores)
    }

    fn answered(&self) -> usize {
        self.held.len() + self.gone.len() + self.taken
    }

    /// Whether a majority has given definite answers.
    pub(super) fn has_majority_of_answers(&self) -> bool {
        self.answered() >= majority(self.stores)
    }

    /// Whether the decision is known, or no more answers come.
    pub(super) fn is_decided(&self) -> bool {
        self.held.len() >= self.enough()
            || self.is_lost()
            || self.is_refused()
            || self.answered() + self.failures.len() == self.stores
    }

    pub(super) fn decision(&self) -> HoldDecision {
        if self.held.len() >= self.enough() {
            HoldDecision::Held
        } else if !self.is_lost() {
            HoldDecision::TooFewAnswers
        } else if self.taken > self.gone.len() {
            HoldDecision::Taken
        } else {
            HoldDecision::Gone
        }
    }
}
