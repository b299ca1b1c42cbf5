//! Looking at the keys that are waited for, in case the word of a release got lost: one who deletes a
//! key by hand sends none.
//!
//! All keys of a client are looked at together, a hundred with one script, over the connection of
//! the subscriptions. Each gets its look once a second, unless very many are waited for: then the
//! looks are as many as before, and further apart. Whoever waits for a key that is free is woken, and
//! so are those whose look failed, to find out for themselves.
//!
//! A look without an answer is also how a subscription that has gone silent is noticed.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::decode;
use super::format::Format;
use super::link::{Call, Limit, Link};
use crate::clock::BootInstant;
use crate::protection::Protection;
use crate::store::wake::{Due, Found, Listener};
use crate::store::{Patience, WakeUps};

/// How many keys one look is for: as many as one renewal.
const BATCH: usize = 100;

/// The shortest pause between two looks, so that those who wait cost the server no more than this
/// however many they are.
const PACE: Duration = Duration::from_millis(10);

/// How many looks may be under way, where the server is far.
const AT_ONCE: usize = 16;

pub(super) struct Looker {
    link: Link,
    wake_ups: Arc<WakeUps>,
    response_timeout: Duration,
}

impl Looker {
    pub(super) fn new(link: Link, wake_ups: Arc<WakeUps>, response_timeout: Duration) -> Self {
        Self { link, wake_ups, response_timeout }
    }

    /// Does it, until the runtime ends.
    pub(super) async fn run(self) {
        if !Protection::SafetyPoll.is_on() {
            return;
        }
        let (looker, mut looks) = (Arc::new(self), JoinSet::new());
        loop {
            match looker.wake_ups.due(BootInstant::now(), BATCH) {
                Due::Now(mut batch) => {
                    batch.sort_unstable_by_key(|listener| listener.format());
                    for of_one_format in batch.chunk_by(|one, next| one.format() == next.format()) {
                        let looker = Arc::clone(&looker);
                        looks.spawn(looker.look(of_one_format.to_vec()));
                    }
                    while looks.try_join_next().is_some() {}
                    if looks.len() >= AT_ONCE {
                        looks.join_next().await;
                    }
                    sleep(PACE).await;
                }
                Due::At(at) => sleep(at.since(BootInstant::now()).max(PACE)).await,
                Due::Never => looker.wake_ups.planned().await,
            }
        }
    }

    /// Looks at some keys of one format.
    async fn look(self: Arc<Self>, batch: Vec<Arc<Listener>>) {
        let Some(first) = batch.first() else { return };
        let format = Format::of(first.format());
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * format.keys());
            for listener in &batch {
                format.add_keys(call, listener.key());
            }
        };
        let patience = Patience { answer: self.response_timeout, total: self.response_timeout };
        let call = Call { limit: Limit::None, patience, trace: None };
        let decode = |reply| decode::looked(reply, batch.len());
        let found = match self.link.run(&format.look, args, call, decode).await {
            Ok(found) => {
                found.into_iter().map(|left| left.map_or(Found::Free, Found::Busy)).collect()
            }
            Err(_) => vec![Found::Nothing; batch.len()],
        };
        self.wake_ups.looked(batch.into_iter().zip(found));
    }
}
