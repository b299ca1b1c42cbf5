//! Fencing tokens, announcements, and the number of waiting processes.
//!
//! A fencing token takes two rounds. In the first one, each store that still has the hold issues a token: a number
//! above its last one, and at least its clock. The highest token of a majority is then written back to a majority,
//! before it is used. The majority of the next holder contains one of these stores, so its token is higher, also if
//! another store has lost its data or has a clock that is behind.
//!
//! A store refuses a token that is far ahead of its clock. If the first majority contains a store whose clock is ahead,
//! the others may refuse its token. The first round is then repeated, and awaits all stores: the majority whose tokens
//! are lowest counts.

use std::sync::Arc;
use std::time::Duration;

use super::round::{VoteRound, within};
use super::store::QuorumStore;
use super::tally::{HoldDecision, HoldTally, HoldVote, left_of_majority, majority};
use lock_core::safeguard::Safeguard;
use lock_core::store::announcements::{Announced, Announcement};
use lock_core::store::contract::{Fenced, Lane, Left, LockStore, Mode, Resource, StoreError};
use lock_core::store::owner::OwnerId;

/// The answers that a round awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedAnswers {
    /// Those that decide.
    Majority,
    /// Those of all stores, for at most the timeout of a store.
    All,
}

impl QuorumStore {
    pub(super) async fn issue_token(
        &self,
        key: &str,
        owner: OwnerId,
        at_least: u64,
    ) -> Result<Fenced, StoreError> {
        let key = Arc::from(key);
        match self.issue_by(&key, owner, (at_least, AwaitedAnswers::Majority)).await? {
            Fenced::Refused(_) => self.issue_by(&key, owner, (at_least, AwaitedAnswers::All)).await,
            issued => Ok(issued),
        }
    }

    /// Issues a token after the first round has had these answers.
    async fn issue_by(
        &self,
        key: &Arc<str>,
        owner: OwnerId,
        first_round: (u64, AwaitedAnswers),
    ) -> Result<Fenced, StoreError> {
        let token = match self.raise_tokens(key, owner, first_round).await? {
            Fenced::With(token) if Safeguard::FenceIsWrittenBack.is_on() => token,
            answer => return Ok(answer),
        };
        let second_round = (token, AwaitedAnswers::Majority);
        Ok(match self.raise_tokens(key, owner, second_round).await? {
            // A majority now has this token, or a higher one.
            Fenced::With(_) => Fenced::With(token),
            lost => lost,
        })
    }

    /// Makes each store issue a token of at least this number, until the answers are there. Returns the highest token of
    /// the majority whose tokens are lowest.
    async fn raise_tokens(
        &self,
        key: &Arc<str>,
        owner: OwnerId,
        (at_least, awaited): (u64, AwaitedAnswers),
    ) -> Result<Fenced, StoreError> {
        let ask = |store: Arc<dyn LockStore>| {
            let key = Arc::clone(key);
            async move {
                let resource = Resource { key: &key, mode: Mode::Exclusive };
                Ok(match store.fence(resource, owner, at_least).await? {
                    Fenced::With(token) => HoldVote::Held(token),
                    Fenced::Gone => HoldVote::Gone,
                    Fenced::Taken => HoldVote::Taken,
                    Fenced::Refused(cause) => HoldVote::Refused(cause),
                })
            }
        };
        let tally = self.ask_about_hold(ask, awaited).await;
        match tally.decision() {
            HoldDecision::Held => {
                let mut tokens: Vec<_> = tally.held.iter().map(|(_, token)| *token).collect();
                tokens.sort_unstable();
                let of_majority = tokens.get(majority(self.members.len()) - 1).or(tokens.last());
                Ok(Fenced::With(of_majority.copied().unwrap_or(at_least)))
            }
            HoldDecision::Gone => Ok(Fenced::Gone),
            HoldDecision::Taken => Ok(Fenced::Taken),
            HoldDecision::TooFewAnswers => {
                let is_refused = tally.is_refused();
                let error = self.too_few(tally, "issued a fencing token");
                if is_refused { Ok(Fenced::Refused(error.to_string())) } else { Err(error) }
            }
        }
    }

    pub(super) async fn announce_holder(
        &self,
        announcement: Announcement<'_>,
    ) -> Result<Announced, StoreError> {
        let Announcement { key, owner, text, keep } = announcement;
        let (key, text): (Arc<str>, Arc<str>) = (key.into(), text.into());
        let ask = |store: Arc<dyn LockStore>| {
            let (key, text) = (Arc::clone(&key), Arc::clone(&text));
            async move {
                let announcement = Announcement { key: &key, owner, text: &text, keep };
                Ok(match store.announce(announcement).await? {
                    Announced::Done => HoldVote::Held(()),
                    Announced::Gone => HoldVote::Gone,
                    Announced::Taken => HoldVote::Taken,
                })
            }
        };
        let tally = self.ask_about_hold(ask, AwaitedAnswers::Majority).await;
        match tally.decision() {
            HoldDecision::Held => Ok(Announced::Done),
            HoldDecision::Gone => Ok(Announced::Gone),
            HoldDecision::Taken => Ok(Announced::Taken),
            HoldDecision::TooFewAnswers => Err(self.too_few(tally, "kept the announcement")),
        }
    }

    /// The announcement that a majority has, or the only one that is known. A holder may have announced itself at fewer
    /// stores, because others have granted its lock later.
    pub(super) async fn announced_holder(
        &self,
        key: &str,
    ) -> Result<Option<(String, Left)>, StoreError> {
        let key: Arc<str> = key.into();
        let ask = |store: Arc<dyn LockStore>| {
            let key = Arc::clone(&key);
            async move { store.announced(&key).await.map(HoldVote::Held) }
        };
        let (stores, mut tally) = (self.members.len(), HoldTally::new(self.members.len()));
        let mut round = self.round(ask);
        while let Some((number, vote)) = round.next().await {
            tally.add(number, vote);
            let texts = tally.held.iter().filter_map(|(_, announced)| announced.as_ref());
            for (text, _) in texts.clone() {
                let same = texts.clone().filter(|(other, _)| other == text);
                let leases: Vec<_> = same.map(|(_, left)| time_of(*left)).collect();
                if leases.len() >= majority(stores) {
                    let announced = (text.clone(), left_of_majority(leases, stores));
                    round.finish_later(|_, _| {});
                    return Ok(Some(announced));
                }
            }
        }
        if !tally.has_majority_of_answers() {
            return Err(self.too_few(tally, "named the leader"));
        }
        let mut texts = tally.held.into_iter().filter_map(|(_, announced)| announced);
        let Some((only, left)) = texts.next() else { return Ok(None) };
        Ok(texts.all(|(other, _)| other == only).then_some((only, left)))
    }

    pub(super) async fn waiting(&self, key: &str, lane: Lane) -> Result<usize, StoreError> {
        let key: Arc<str> = key.into();
        let ask = |store: Arc<dyn LockStore>| {
            let key = Arc::clone(&key);
            async move {
                let resource = Resource { key: &key, mode: Mode::Exclusive };
                store.count_waiters(resource, lane).await.map(HoldVote::Held)
            }
        };
        let tally = self.ask_about_hold(ask, AwaitedAnswers::Majority).await;
        if !tally.has_majority_of_answers() {
            return Err(self.too_few(tally, "counted the waiting processes"));
        }
        Ok(tally.held.iter().map(|(_, count)| *count).max().unwrap_or_default())
    }

    /// Sends a request to all stores, until the answers are there.
    async fn ask_about_hold<T, F>(
        &self,
        ask: impl Fn(Arc<dyn LockStore>) -> F,
        awaited: AwaitedAnswers,
    ) -> HoldTally<T>
    where
        T: Send + Unpin + 'static,
        F: Future<Output = Result<HoldVote<T>, StoreError>> + Send + 'static,
    {
        let (mut round, mut tally) = (self.round(ask), HoldTally::new(self.members.len()));
        while (awaited == AwaitedAnswers::All || !tally.is_decided())
            && let Some((number, vote)) = round.next().await
        {
            tally.add(number, vote);
        }
        round.finish_later(|_, _| {});
        tally
    }

    fn round<T, F>(
        &self,
        ask: impl Fn(Arc<dyn LockStore>) -> F,
    ) -> VoteRound<Result<HoldVote<T>, StoreError>>
    where
        T: Send + Unpin + 'static,
        F: Future<Output = Result<HoldVote<T>, StoreError>> + Send + 'static,
    {
        let ask = |store: &Arc<dyn LockStore>| within(self.server_timeout, ask(Arc::clone(store)));
        VoteRound::new(self.members.iter().map(|member| Some(ask(&member.store))))
    }

    fn too_few<T>(&self, tally: HoldTally<T>, attempted: &str) -> StoreError {
        tally.failures.into_error(self.membership.names(), attempted)
    }
}

/// The length of the rest of a lease, if it ends.
pub(super) fn time_of(left: Left) -> Option<Duration> {
    match left {
        Left::Time(left) => Some(left),
        Left::Forever | Left::Unknown => None,
    }
}
