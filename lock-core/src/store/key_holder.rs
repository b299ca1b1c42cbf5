//! Who has a lock, as far as the store knows.

use std::time::SystemTime;

use super::owner::OwnerId;
use crate::client_info::ClientInfo;
use crate::holder::Holder;

/// The holder of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyHolder {
    pub client: ClientInfo,
    /// When its acquisition began, by its own clock.
    pub began: Option<SystemTime>,
    /// Whether it is the client that asks, as far as the store can tell its clients apart.
    pub is_own: bool,
}

impl KeyHolder {
    /// A holder with this owner id; `None` after the release of a lock that stays for its `min_hold`.
    pub fn of(owner: Option<OwnerId>) -> Self {
        Self { began: owner.map(OwnerId::began), ..Self::default() }
    }

    /// Adds this to what is known about the holder.
    pub fn tell(self, holder: &mut Holder, now: SystemTime) {
        // The clock of the holder may be ahead.
        holder.held_for = self.began.and_then(|began| now.duration_since(began).ok());
        holder.client = Some(Box::new(self.client));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::holder::HolderKind;

    #[test]
    fn a_clock_that_is_ahead_gives_no_time() {
        let (now, minute) = (SystemTime::now(), Duration::from_secs(60));
        for (began, held_for) in
            [(Some(now - minute), Some(minute)), (Some(now + minute), None), (None, None)]
        {
            let mut told = Holder::new(HolderKind::Elsewhere);
            KeyHolder { began, ..KeyHolder::default() }.tell(&mut told, now);
            assert_eq!((told.held_for, told.client.is_some()), (held_for, true));
        }
    }
}
