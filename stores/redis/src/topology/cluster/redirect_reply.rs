//! Errors with which a node of a cluster sends a request elsewhere.

use crate::hash_slot::SLOTS;
use lock_core::store::contract::StoreError;

/// What an error of a node means for the request. Nothing has run in any of these cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another node has the slot.
    Moved { slot: u16, to: RedirectTarget },
    /// The slot is being moved, and the other node has the key, or would get it.
    Ask { to: RedirectTarget },
    /// The slot is being moved, and the keys of the request are on both nodes.
    TryAgain,
}

/// The node that a redirection names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectTarget {
    /// `None` if the node that has redirected does not know the host. It is then its own.
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

impl Redirect {
    /// Decodes an error.
    pub(crate) fn of(error: &StoreError) -> Option<Self> {
        let StoreError::Refused(text) = error else { return None };
        let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
        let target = || {
            let (slot, address) = detail.split_once(' ')?;
            let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
            // An IPv6 address has no brackets.
            let (host, port) = address.split(' ').next()?.rsplit_once(':')?;
            // The host name of the node is not known yet. The nodes have to be asked again.
            if host == "?" {
                return None;
            }
            let host = Some(host).filter(|host| !host.is_empty());
            let to = RedirectTarget { host: host.map(str::to_owned), port: port.parse().ok()? };
            Some((slot, to))
        };
        match code {
            "MOVED" => target().map(|(slot, to)| Self::Moved { slot, to }),
            "ASK" => target().map(|(_, to)| Self::Ask { to }),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// Whether a failover would explain an error: there was no answer or no connection, or the node has
/// another role or none. Other errors of a node, such as `OOM`, have other causes.
pub(crate) fn may_be_failover(error: &StoreError) -> bool {
    let StoreError::Refused(text) = error else { return matches!(error, StoreError::Unknown(_)) };
    let code = text.split(' ').next().unwrap_or_default();
    let is_reply = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let codes = ["CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING", "MOVED", "ASK"];
    !is_reply || codes.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Redirect> {
        Redirect::of(&StoreError::Refused(text.into()))
    }

    fn target(host: &str, port: u16) -> RedirectTarget {
        RedirectTarget { host: Some(host.into()).filter(|host: &String| !host.is_empty()), port }
    }

    #[test]
    fn redirections_name_a_slot_and_a_node() {
        let moved = |slot, host, port| Some(Redirect::Moved { slot, to: target(host, port) });
        assert_eq!(decoded("MOVED 3999 127.0.0.1:6381"), moved(3999, "127.0.0.1", 6381));
        assert_eq!(decoded("MOVED 3999 2001:db8::1:6381"), moved(3999, "2001:db8::1", 6381));
        assert_eq!(decoded("MOVED 0 one.example:6381"), moved(0, "one.example", 6381));
        assert_eq!(decoded("MOVED 3999 :6381"), moved(3999, "", 6381));
        assert_eq!(decoded("MOVED 3999 ?:6381"), None, "its host name is not known yet");
        let asked = Redirect::Ask { to: target("h", 1) };
        assert_eq!(decoded("ASK 3999 h:1"), Some(asked));
        let waits = "TRYAGAIN Multiple keys request during rehashing of slot";
        assert_eq!(decoded(waits), Some(Redirect::TryAgain));
    }

    #[test]
    fn a_missing_answer_or_a_changed_role_may_be_a_failover() {
        let refused = |text: &str| StoreError::Refused(text.into());
        for error in [
            StoreError::Unknown("no answer".into()),
            refused("Connection refused (os error 111)"),
            refused("no connection to h:1 within 50 ms"),
            refused("CLUSTERDOWN Hash slot not served"),
            refused("MOVED 3999 ?:6381"),
            refused("READONLY You can't write against a read only replica"),
        ] {
            assert!(may_be_failover(&error), "{error}");
        }
        let denied = StoreError::Denied("NOPERM".into());
        for error in [refused("OOM command not allowed"), refused("TRYAGAIN"), denied] {
            assert!(!may_be_failover(&error), "{error}");
        }
    }

    #[test]
    fn other_errors_are_no_redirections() {
        for text in [
            "CLUSTERDOWN The cluster is down",
            "MOVED",
            "MOVED 16384 h:1",
            "MOVED 3999 h",
            "MOVED 3999 h:70000",
            "ERR MOVED 3999 h:1",
        ] {
            assert_eq!(decoded(text), None, "{text}");
        }
        let unknown = StoreError::Unknown("MOVED 3999 h:1".into());
        assert_eq!(Redirect::of(&unknown), None);
    }
}
