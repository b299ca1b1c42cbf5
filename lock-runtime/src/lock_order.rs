//! Finding locks that are taken in both orders.
//!
//! A body that holds `a` and calls for `b` waits for a body that holds `b` and calls for `a`, and the other way
//! round, until their waits end. Such calls are found although they have not met: the first order in which two keys
//! are locked is remembered, and the opposite one is reported. Two bodies under a common lock never meet, so their
//! orders do not count against each other.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::clock::BootInstant;
use crate::engine::handoff::Hold;
use crate::store::contract::Mode;
use crate::sync::{Mutex, lock};
use crate::telemetry::SiteLabel;

/// The largest number of pairs that are remembered.
const MOST_PAIRS: usize = 10_000;

/// The orders in which a client has locked keys.
#[derive(Debug)]
pub(crate) struct LockOrders {
    action: OrderAction,
    known: Mutex<HashMap<KeyPair, KnownPair>>,
    /// The reports of a test client, which also fail the test if the task that panics is not awaited.
    #[cfg(feature = "testing")]
    reports: Mutex<Vec<String>>,
}

/// Two keys, sorted.
type KeyPair = (Arc<str>, Arc<str>);

/// What happens when a pair of keys is locked in both orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderAction {
    Warn,
    #[cfg(feature = "testing")]
    Panic,
}

/// How two keys were locked.
#[derive(Debug, Default)]
struct KnownPair {
    /// In the order of the pair, and in the opposite one.
    orders: [Option<KnownOrder>; 2],
    is_reported: bool,
}

/// Two keys were locked in some order.
#[derive(Debug, Clone)]
struct KnownOrder {
    /// Who had the first key, and who called for the second one.
    labels: [SiteLabel; 2],
    /// The other locks that were always held exclusively.
    gates: Vec<Arc<str>>,
}

/// Two orders of the same keys.
struct OppositeOrders<'a> {
    keys: [&'a str; 2],
    here: [SiteLabel; 2],
    there: [SiteLabel; 2],
}

impl LockOrders {
    pub(crate) fn new(action: OrderAction) -> Self {
        Self {
            action,
            known: Mutex::default(),
            #[cfg(feature = "testing")]
            reports: Mutex::default(),
        }
    }

    /// A call for a key begins inside the bodies that have these holds.
    pub(crate) fn call(&self, holds: &[Hold], key: &str, label: SiteLabel) {
        let now = BootInstant::now();
        let held: Vec<&Hold> = holds.iter().filter(|hold| hold.is_valid(now)).collect();
        let excludes = |hold: &Hold| matches!(hold.lease().mode(), Mode::Exclusive | Mode::Write);
        for (at, hold) in held.iter().enumerate() {
            let others = held.iter().enumerate().filter(|(other, _)| *other != at);
            let gates = others.filter(|(_, other)| excludes(other));
            let gates = gates.map(|(_, other)| Arc::clone(other.key())).collect();
            let order = KnownOrder { labels: [hold.site().label(), label], gates };
            let here = order.labels;
            if let Some(there) = self.note((Arc::clone(hold.key()), Arc::from(key)), order) {
                self.report(&OppositeOrders { keys: [&**hold.key(), key], here, there });
            }
        }
    }

    /// Remembers an order. Returns the functions of the opposite one, if bodies of both can meet, and the pair was
    /// not reported before.
    fn note(&self, (first, second): KeyPair, order: KnownOrder) -> Option<[SiteLabel; 2]> {
        let is_sorted = first <= second;
        let pair = if is_sorted { (first, second) } else { (second, first) };
        let mut known = lock(&self.known);
        if known.len() >= MOST_PAIRS && !known.contains_key(&pair) {
            return None;
        }
        let KnownPair { orders: [sorted, opposite], is_reported } = known.entry(pair).or_default();
        let (own, other) = if is_sorted { (sorted, opposite) } else { (opposite, sorted) };
        match own {
            Some(own) => own.gates.retain(|gate| order.gates.contains(gate)),
            None => *own = Some(order),
        }
        let (own, other) = (own.as_ref()?, other.as_ref()?);
        let never_meet = own.gates.iter().any(|gate| other.gates.contains(gate));
        let is_new = !never_meet && !std::mem::replace(is_reported, true);
        is_new.then_some(other.labels)
    }

    fn report(&self, orders: &OppositeOrders<'_>) {
        match self.action {
            OrderAction::Warn => {
                let [first, second] = orders.keys;
                tracing::warn!(first, second, %orders, "two locks are taken in both orders");
            }
            #[cfg(feature = "testing")]
            OrderAction::Panic => {
                lock(&self.reports).push(orders.to_string());
                panic!("possible deadlock: {orders}")
            }
        }
    }

    /// Panics if there were reports.
    #[cfg(feature = "testing")]
    pub(crate) fn verify(&self) {
        let reports = std::mem::take(&mut *lock(&self.reports));
        assert!(reports.is_empty(), "possible deadlocks: {}", reports.join("; "));
    }
}

impl fmt::Display for OppositeOrders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.keys;
        let name = |label: SiteLabel| label.function.unwrap_or(label.template);
        let [here, there] =
            [self.here, self.there].map(|[outer, inner]| [name(outer), name(inner)]);
        write!(
            f,
            "{first:?} before {second:?} in {} and {}, and {second:?} before {first:?} in {} and {}; lock them \
             in one order, or together (`keys = [...]`, `lock_all`)",
            here[0], here[1], there[0], there[1]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: SiteLabel = SiteLabel { template: "t", function: None };

    fn note(orders: &LockOrders, first: &str, second: &str, gates: &[&str]) -> bool {
        let gates = gates.iter().map(|key| Arc::from(*key)).collect();
        let order = KnownOrder { labels: [LABEL; 2], gates };
        orders.note((Arc::from(first), Arc::from(second)), order).is_some()
    }

    #[test]
    fn the_opposite_order_is_reported_once() {
        let orders = LockOrders::new(OrderAction::Warn);
        assert!(!note(&orders, "a", "b", &[]) && !note(&orders, "a", "b", &[]));
        assert!(!note(&orders, "b", "c", &[]) && !note(&orders, "a", "c", &[]));
        assert!(note(&orders, "b", "a", &[]));
        assert!(!note(&orders, "b", "a", &[]) && !note(&orders, "a", "b", &[]), "once");
    }

    #[test]
    fn bodies_under_a_common_lock_never_meet() {
        for later in [("a", "b"), ("b", "a")] {
            let orders = LockOrders::new(OrderAction::Warn);
            assert!(!note(&orders, "a", "b", &["gate", "other"]));
            assert!(!note(&orders, "b", "a", &["gate"]));
            assert!(note(&orders, later.0, later.1, &["other"]), "without the gate");
        }
    }

    #[test]
    fn the_number_of_pairs_is_limited() {
        let orders = LockOrders::new(OrderAction::Warn);
        for n in 0..MOST_PAIRS + 10 {
            note(&orders, &format!("a{n}"), "b", &[]);
        }
        assert_eq!(lock(&orders.known).len(), MOST_PAIRS);
        assert!(note(&orders, "b", "a0", &[]), "those that are known still count");
    }
}
