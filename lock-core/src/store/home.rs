//! The runtime that serves connections.

use std::sync::{Arc, Weak};

use tokio::runtime;
use tokio::task::AbortHandle;

/// The runtime that serves some connections, and whether it still runs.
pub struct Home {
    runtime: runtime::Handle,
    /// Upgradable for as long as the runtime runs its tasks.
    alive: Weak<()>,
    /// The task on the runtime that keeps `alive` upgradable.
    task: AbortHandle,
}

impl Home {
    pub fn new(runtime: runtime::Handle) -> Self {
        let kept = Arc::new(());
        let alive = Arc::downgrade(&kept);
        let task = runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(kept);
        });
        Self { runtime, alive, task: task.abort_handle() }
    }

    pub fn runtime(&self) -> &runtime::Handle {
        &self.runtime
    }

    /// Whether the runtime still runs.
    pub fn is_alive(&self) -> bool {
        self.alive.strong_count() > 0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the current runtime can serve sockets. Tokio reports this only by a panic, so it is
/// checked once per runtime, and not in the middle of a request. The panic hook has printed tokio's
/// own advice by then.
pub fn has_io() -> bool {
    let Ok(socket) = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)) else {
        return true;
    };
    if socket.set_nonblocking(true).is_err() {
        return true;
    }
    let register = || drop(tokio::net::UdpSocket::from_std(socket));
    std::panic::catch_unwind(register).is_ok()
}
