//! A network of a test, in place of that of the system.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

/// A socket of a test.
pub trait TestSocket: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin> TestSocket for T {}

/// The outcome of an attempt to connect.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn TestSocket>>> + Send>>;

/// Connects to a host and a port.
pub type Connect = Arc<dyn Fn(&str, u16) -> Connecting + Send + Sync>;

thread_local! {
    static CONNECT: RefCell<Option<Connect>> = const { RefCell::new(None) };
}

/// From now on, the clients of this thread connect over TCP with `connect`, and run on the runtime of their caller.
pub fn use_network(connect: Option<Connect>) {
    CONNECT.set(connect);
}

pub(crate) fn current() -> Option<Connect> {
    CONNECT.with_borrow(Clone::clone)
}
