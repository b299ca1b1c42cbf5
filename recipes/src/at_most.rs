//! At most N at a time, over all processes.

use lock_runtime::{LockClient, LockError, distributed_lock};

/// Machines that render videos, of which the licence of the program allows three at a time.
#[derive(Debug)]
pub struct RenderFarm {
    locks: LockClient,
}

impl RenderFarm {
    /// A process that renders.
    #[must_use]
    pub fn new(locks: LockClient) -> Self {
        Self { locks }
    }
}

/// Renders a video when fewer than three others are being rendered.
///
/// Cancel safe: if the future is dropped, the video is not finished, and the permit is free.
///
/// # Errors
///
/// No permit was free for the whole wait, or it was lost.
#[distributed_lock(key = "render", permits = 3, wait = "10m", client = farm.locks)]
pub async fn render<V: Future>(farm: &RenderFarm, video: V) -> Result<V::Output, LockError> {
    Ok(video.await)
}
