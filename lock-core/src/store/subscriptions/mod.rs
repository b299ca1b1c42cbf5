//! The subscriptions of this process to releases. A store chooses the name of a key's channel; the
//! memory store uses the key itself.
//!
//! An acquisition subscribes *before* its attempt. Each listener stores one wake-up, so no release
//! between the attempt and the sleep is missed. A subscription depends on a connection. Each
//! subscription therefore has the state `live`, and a store that had to reconnect wakes every
//! listener. A lost wake-up costs time but never correctness: a remote store checks the keys of all
//! listeners regularly, and acquisitions also have timers.
//!
//! A channel stays subscribed for a moment after its last listener has left. The next listener of a
//! contended key comes soon, and would otherwise have to wait for a new subscription.
//!
//! There may be many thousands of keys. Channels to subscribe or unsubscribe, and keys to check,
//! are therefore in separate queues, and no operation searches the map of all channels. Wakers are
//! called after the map is unlocked, because they are user code.

mod channels;
mod inbox;
mod inbox_queue;
mod relayed;
mod remote;
#[cfg(test)]
mod tests;
mod waiting_claim;

pub use self::channels::{Subscription, Subscriptions};
pub use self::inbox::Inbox;
pub use self::inbox_queue::InboxLimits;
pub use self::remote::DueCheck;
pub use self::remote::OwnRelease;
pub use self::waiting_claim::CheckResult;
pub use self::waiting_claim::{Listener, LockTransfer, QueueMessage};
