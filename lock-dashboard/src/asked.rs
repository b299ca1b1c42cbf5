//! One round of questions to the processes.

use std::time::{Duration, Instant};

use lock_runtime::LockError;
use lock_runtime::admin::{ClientAnswers, ClientSnapshot, HoldInfo, LockAdmin, LossInfo, WaitInfo};

/// The shortest time for which the later questions of a round wait for clients that have not answered the first one.
const SHORTEST: Duration = Duration::from_millis(250);

/// What the processes have answered in one round.
pub(crate) struct AskedRound {
    /// When the first question was sent.
    pub(crate) began: Instant,
    /// How long the first question took.
    pub(crate) took: Duration,
    pub(crate) holds: ClientAnswers<Vec<HoldInfo>>,
    pub(crate) waits: ClientAnswers<Vec<WaitInfo>>,
    /// `None` in most rounds.
    pub(crate) snapshots: Option<ClientAnswers<ClientSnapshot>>,
    /// `None` if there are no new losses, or if they were asked for a moment ago.
    pub(crate) losses: Option<ClientAnswers<Vec<LossInfo>>>,
}

impl AskedRound {
    /// Asks for holds and waits, and sometimes for snapshots and losses: a client answers ten questions a second, of
    /// all who ask. A client that does not answer delays the first question by the timeout of `admin`, and each of the
    /// others by a quarter of it.
    ///
    /// `needs_losses` decides by the snapshots whether the losses have to be asked for.
    pub(crate) async fn ask(
        admin: &LockAdmin,
        needs_snapshots: bool,
        needs_losses: impl FnOnce(&ClientAnswers<ClientSnapshot>) -> bool,
    ) -> Result<Self, LockError> {
        let began = Instant::now();
        let holds = admin.holds().await?;
        let took = began.elapsed();
        let admin = match holds.unanswered {
            Some(0) => admin.clone(),
            _ => admin.clone().answer_timeout((took / 4).max(SHORTEST)),
        };
        let waits = admin.waiting().await?;
        let snapshots = if needs_snapshots { Some(admin.snapshots().await?) } else { None };
        let losses = match &snapshots {
            Some(snapshots) if needs_losses(snapshots) => Some(admin.losses().await?),
            _ => None,
        };
        Ok(Self { began, took, holds, waits, snapshots, losses })
    }
}
