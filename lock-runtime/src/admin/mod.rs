//! Asking the clients of a store which locks they hold, which calls wait, and what they have measured; and
//! revoking locks. Feature `admin`.
//!
//! A client answers itself, so nothing is stored for each lock, and only those who ask pay for it. A question
//! reaches all clients that have the namespace of the asking one and say [who they are](crate::Identity),
//! whether or not they have the feature `admin`. Clients of other libraries, and processes that have died, do
//! not answer; [`LockAdmin::holder`] reads from the store who has one lock.
//!
//! ```
//! use lock_runtime::admin::LockAdmin;
//! use lock_runtime::{LockClient, LockError};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! let client = LockClient::memory();
//! let _guard = client.lock("order:7").acquire().await?;
//! let admin = LockAdmin::new(&client);
//! for answer in admin.holds().await?.answers {
//!     for hold in answer.found {
//!         println!("{}: {} has held it for {:?}", hold.key, answer.client, hold.held_for);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # With Redis
//!
//! A question is published on `lock_ask:<namespace>`, and answered on a channel that begins with
//! `lock_answer:{lock_ask:<namespace>}:`. The user of the asking client needs the permission to publish on the first
//! and to subscribe to the second, and those of the clients the reverse. Without it, a client is not asked, and
//! everything else works. A client answers at most ten questions a second, and ignores the others. An answer has at
//! most 1 MiB, about 8,000 locks. A [`LockAdmin`] stays subscribed from its first question until it and its clones are
//! dropped.

mod answers;
mod asking;
mod collected;
mod scan;
mod stored;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::answers::{
    ClientAnswer, ClientAnswers, ClientSnapshot, HoldInfo, LossInfo, Revocation, SiteInfo, WaitInfo,
};
use self::asking::AskSession;
pub use self::scan::LockScan;
use crate::client::LockClient;
use crate::connected::Connected;
use crate::error::LockError;
use crate::key::{self, LockKey};
pub use crate::lock_state::{Deletion, HolderToken, LockState, StoredHolder, StoredLayout};
use crate::questions::REVOCATION;
use crate::questions::answer::AnswerPage;
use crate::questions::question::{QuestionKind, RevocationRequest};
use crate::questions::record::TextRecord;
use crate::runtime;

/// The time for which answers are awaited, unless it is set.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The shortest and the longest time.
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// Asks the clients of a namespace, and revokes their locks. Cheap to clone; the clones ask one after the
/// other, at most ten times in a second. Keeps its client alive.
///
/// All methods that ask clients return [`LockError::Unavailable`] if the store has not taken the question, or if the
/// connection was lost before the first answer, [`LockError::Denied`] without the permission,
/// [`LockError::InvalidKey`], [`LockError::ShutDown`], and [`LockError::Config`] for an invalid timeout or without a
/// tokio runtime with timers. A client that does not answer is no error: see [`ClientAnswers::unanswered`]. The errors
/// of the methods that read the store are with each of them.
///
/// All methods are cancel safe: dropping a future leaves the asking client as it was. A lock whose revocation
/// was sent may still be revoked, and one whose deletion was sent may still be deleted.
#[derive(Clone)]
pub struct LockAdmin {
    connected: Arc<Connected>,
    session: Arc<tokio::sync::Mutex<Option<AskSession>>>,
    answer_timeout: Duration,
}

impl LockAdmin {
    /// For the clients that use the same store as this one, and the same namespace. Costs no round trip.
    #[must_use]
    pub fn new(client: &LockClient) -> Self {
        let connected = Arc::clone(client.connected());
        Self { connected, session: Arc::default(), answer_timeout: ANSWER_TIMEOUT }
    }

    /// Sets how long answers are awaited, from 10 ms to 60 s; 1 s by default. A question returns as soon as
    /// all clients have answered that the store has reached. It always takes this long in a Redis Cluster
    /// before version 7, which does not count them.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// The namespace of the clients; empty without one. Keys in answers begin with it.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder().url("memory:").namespace("shop").connect().await?;
    /// assert_eq!(LockAdmin::new(&client).namespace(), "shop");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.connected.namespace
    }

    /// The namespaces of all clients of the store that say [who they are](crate::Identity), sorted; an empty text is that of
    /// clients without a namespace. For an operator who has found nothing in a namespace. The names are what the store tells,
    /// so they may have any characters.
    ///
    /// `None` with a Redis Cluster, and without the permission for `PUBSUB CHANNELS`. [`LockError::Config`] where clients
    /// [cannot be asked](Self::can_ask). Redis tells the clients of all its databases.
    ///
    /// Costs a round trip.
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder().url("memory:").namespace("shop").connect().await?;
    /// let found = LockAdmin::new(&client).namespaces().await?;
    /// assert_eq!(found, Some(vec!["shop".to_owned()]));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn namespaces(&self) -> Result<Option<Vec<String>>, LockError> {
        let mut session = self.session.lock().await;
        self.opened(&mut session)?.namespaces().await
    }

    /// Whether clients can be asked. Those of a quorum, of etcd and of PostgreSQL cannot, and those of a custom store only if it
    /// passes questions on: the methods that ask them return [`LockError::Config`], and those that read the store work.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::LockClient;
    /// use lock_runtime::admin::LockAdmin;
    ///
    /// assert!(LockAdmin::new(&LockClient::memory()).can_ask());
    /// ```
    #[must_use]
    pub fn can_ask(&self) -> bool {
        self.connected.has_questions()
    }

    /// The clients.
    ///
    /// Costs two round trips, the first question one more, and an answer of each client.
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let clients = LockAdmin::new(&client).clients().await?;
    /// assert_eq!(clients.answers[0].client.process, Some(std::process::id()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn clients(&self) -> Result<ClientAnswers<()>, LockError> {
        Ok(self.ask(QuestionKind::Client).await?.map(|_| ()))
    }

    /// The locks that the clients hold, in the order in which they were acquired.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let _guard = client.lock("report").acquire().await?;
    /// let holds = LockAdmin::new(&client).holds().await?;
    /// assert_eq!(holds.answers[0].found[0].key, "report");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holds(&self) -> Result<ClientAnswers<Vec<HoldInfo>>, LockError> {
        self.ask_for(QuestionKind::Holds(None), HoldInfo::read).await
    }

    /// The locks with this key that the clients hold.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let _guards = (client.lock("report").acquire().await?, client.lock("other").acquire().await?);
    /// let holds = LockAdmin::new(&client).holds_of("report").await?;
    /// assert_eq!(holds.answers[0].found.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holds_of(
        &self,
        key: impl Into<LockKey>,
    ) -> Result<ClientAnswers<Vec<HoldInfo>>, LockError> {
        let key = self.full(key.into())?;
        self.ask_for(QuestionKind::Holds(Some(key)), HoldInfo::read).await
    }

    /// The keys for which calls of the clients wait.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let _guard = client.lock("report").acquire().await?;
    /// let waiting = tokio::spawn(client.lock("report").acquire());
    /// tokio::task::yield_now().await;
    /// let queues = LockAdmin::new(&client).waiting().await?;
    /// assert_eq!(queues.answers[0].found[0].calls, 1);
    /// # waiting.abort();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn waiting(&self) -> Result<ClientAnswers<Vec<WaitInfo>>, LockError> {
        self.ask_for(QuestionKind::Queue, WaitInfo::read).await
    }

    /// What the clients have measured since they were created; see
    /// [`LockClient::snapshot`](crate::LockClient::snapshot).
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::telemetry::AcquisitionOutcome;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// client.lock("report").template("report").run(async { /* … */ }).await?;
    /// let snapshots = LockAdmin::new(&client).snapshots().await?;
    /// let site = snapshots.answers[0].found.site("report").expect("it was used");
    /// assert_eq!(site.acquisitions(AcquisitionOutcome::Granted), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn snapshots(&self) -> Result<ClientAnswers<ClientSnapshot>, LockError> {
        let read = |pages: Vec<AnswerPage>| {
            ClientSnapshot::read(pages.iter().flat_map(AnswerPage::records))
        };
        Ok(self.ask(QuestionKind::Snapshot).await?.map(read))
    }

    /// The locks that the clients have lost while they were held, the latest first: the last 1,000 of each client.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError, LostReason};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.lock("report").lease(Duration::from_millis(50)).acquire().await?;
    /// guard.lost().await;
    /// // From here on at the latest, the client has recorded the loss.
    /// drop(guard);
    /// let losses = LockAdmin::new(&client).losses().await?;
    /// assert_eq!(losses.answers[0].found[0].reason, LostReason::LeaseOver);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn losses(&self) -> Result<ClientAnswers<Vec<LossInfo>>, LockError> {
        self.ask_for(QuestionKind::Losses, LossInfo::read).await
    }

    /// Asks the holders of a lock to give it up. Those whose clients are
    /// [revocable](crate::LockClientBuilder::revocable) lose it with the reason
    /// [`Revoked`](crate::LostReason::Revoked): their bodies are dropped, and the key is then released. Other
    /// calls may have it by the time this method returns. A holder whose task is not polled keeps the key until its
    /// lease ends; the lease is not renewed.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`]. After [`LockError::Unavailable`], the lock may have been revoked.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError, LostReason};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder().url("memory:").revocable(true).connect().await?;
    /// let guard = client.lock("report").acquire().await?;
    /// let revocation = LockAdmin::new(&client).revoke("report").await?;
    /// assert_eq!((revocation.revoked, revocation.refused), (1, 0));
    /// assert_eq!(guard.lost().await, LostReason::Revoked);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revoke(&self, key: impl Into<LockKey>) -> Result<Revocation, LockError> {
        self.revoke_of(key.into(), None).await
    }

    /// Asks one client to give up a lock: the one with this [id](crate::ClientInfo::id), for example because
    /// [`holds`](Self::holds) has named it. The lock stays if another client has it by now.
    ///
    /// Costs as much as [`clients`](Self::clients).
    ///
    /// # Errors
    ///
    /// See [`LockAdmin`]. After [`LockError::Unavailable`], the lock may have been revoked.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError, LostReason};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder().url("memory:").revocable(true).connect().await?;
    /// let guard = client.lock("report").acquire().await?;
    /// let admin = LockAdmin::new(&client);
    /// let answers = admin.holds_of("report").await?.answers;
    /// let holder = answers[0].client.id.as_deref().unwrap_or_default();
    /// assert_eq!(admin.revoke_from("report", holder).await?.revoked, 1);
    /// assert_eq!(guard.lost().await, LostReason::Revoked);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revoke_from(
        &self,
        key: impl Into<LockKey>,
        client: &str,
    ) -> Result<Revocation, LockError> {
        self.revoke_of(key.into(), Some(client.to_owned())).await
    }

    async fn revoke_of(&self, key: LockKey, from: Option<String>) -> Result<Revocation, LockError> {
        let key = self.full(key)?;
        let by = self.connected.told.as_ref().map(ToString::to_string).unwrap_or_default();
        let request = RevocationRequest { key, from, by };
        let count = |record: &TextRecord<'_>| {
            record.is_about(REVOCATION).then(|| record.number("locks")).flatten()
        };
        let ClientAnswers { answers, unanswered } =
            self.ask_for(QuestionKind::Revoke(request), count).await?;
        let mut revocation = Revocation { revoked: 0, refused: 0, unanswered };
        for answer in answers {
            let count = answer.found.into_iter().fold(0_u64, u64::saturating_add);
            let total =
                if answer.is_revocable { &mut revocation.revoked } else { &mut revocation.refused };
            *total = total.saturating_add(count);
        }
        Ok(revocation)
    }

    fn full(&self, key: LockKey) -> Result<String, LockError> {
        let key = key.into_string()?;
        Ok(key::full(&self.connected.namespace, &key)?.into_owned())
    }

    /// Asks all clients, and reads each record of their answers.
    async fn ask_for<T>(
        &self,
        kind: QuestionKind,
        read: impl Fn(&TextRecord<'_>) -> Option<T>,
    ) -> Result<ClientAnswers<Vec<T>>, LockError> {
        let read = |pages: Vec<AnswerPage>| {
            let records = pages.iter().flat_map(AnswerPage::records);
            records.filter_map(|record| read(&record)).collect()
        };
        Ok(self.ask(kind).await?.map(read))
    }

    /// The session, which begins with the first question.
    fn opened<'s>(
        &self,
        session: &'s mut Option<AskSession>,
    ) -> Result<&'s mut AskSession, LockError> {
        runtime::checked()?;
        self.connected.engine.check_open(None)?;
        Ok(match session {
            Some(session) => session,
            none => none.insert(AskSession::new(self.connected.asker()?)),
        })
    }

    /// Asks all clients. Returns the pages of each answer.
    async fn ask(&self, kind: QuestionKind) -> Result<ClientAnswers<Vec<AnswerPage>>, LockError> {
        let (shortest, longest) = TIMEOUTS;
        if !(shortest..=longest).contains(&self.answer_timeout) {
            let problem = format!("{:?} is not from 10 ms to 60 s", self.answer_timeout);
            return Err(LockError::config("answer_timeout", problem));
        }
        let mut session = self.session.lock().await;
        self.opened(&mut session)?.ask(kind, self.answer_timeout).await
    }
}

impl fmt::Debug for LockAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAdmin")
            .field("namespace", &self.connected.namespace)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}
