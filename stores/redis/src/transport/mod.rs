//! One socket to one server: how it is opened, secured and logged in to, how it batches writes and
//! limits replies, and what its errors mean. Knows no locks.

pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod handshake;
pub(crate) mod login;
pub(crate) mod outgoing;
pub(crate) mod pipelined;
mod probe;
pub(crate) mod renewed_login;
mod reply;
mod reply_size;
pub(crate) mod server_info;
mod socket;
#[cfg(feature = "testing")]
pub mod test_network;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod traffic;
