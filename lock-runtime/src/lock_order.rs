//! Finding locks that are taken in both orders.
//!
//! A body that holds `a` and calls for `b` waits for a body that holds `b` and calls for `a`, and the other way
//! round, until their waits end. Such calls are found although they have not met: the first order in which two keys
//! are locked is remembered, and the opposite one is reported. Two bodies under a common lock never meet, so their
//! orders do not count against each other.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::engine::handoff::Hold;
use crate::sync::{Mutex, lock};
use crate::telemetry::SiteLabel;

/// The largest number of orders that are remembered.
const MOST_ORDERS: usize = 10_000;

/// The orders in which a client has locked keys.
#[derive(Debug)]
pub(crate) struct LockOrders {
    action: OrderAction,
    known: Mutex<HashMap<KeyPair, KnownOrder>>,
}

/// Two keys, in the order in which they were locked.
type KeyPair = (Arc<str>, Arc<str>);

/// What happens when a pair of keys is locked in both orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderAction {
    Warn,
    #[cfg(feature = "testing")]
    Panic,
}

/// Two keys were locked in this order.
#[derive(Debug, Clone)]
struct KnownOrder {
    first: SiteLabel,
    second: SiteLabel,
    /// The other keys that were held.
    others: Vec<Arc<str>>,
    is_reported: bool,
}

/// Two orders of the same keys.
struct OppositeOrders<'a> {
    keys: [&'a str; 2],
    here: [SiteLabel; 2],
    there: [SiteLabel; 2],
}

impl LockOrders {
    pub(crate) fn new(action: OrderAction) -> Self {
        Self { action, known: Mutex::default() }
    }

    /// A call for a key begins inside the bodies that have these holds.
    pub(crate) fn call(&self, holds: &[Hold], key: &str, label: SiteLabel) {
        let held: Vec<Arc<str>> = holds.iter().map(|hold| Arc::clone(hold.key())).collect();
        for (at, hold) in holds.iter().enumerate() {
            let others = held.iter().enumerate().filter(|(other, _)| *other != at);
            let order = KnownOrder {
                first: hold.site().label(),
                second: label,
                others: others.map(|(_, key)| Arc::clone(key)).collect(),
                is_reported: false,
            };
            let found = self.note((Arc::clone(hold.key()), Arc::from(key)), order);
            if let Some(there) = found {
                let keys = [&**hold.key(), key];
                let here = [hold.site().label(), label];
                self.report(&OppositeOrders { keys, here, there });
            }
        }
    }

    /// Remembers an order. Returns the functions of the opposite one, unless it was reported before.
    fn note(&self, keys: KeyPair, order: KnownOrder) -> Option<[SiteLabel; 2]> {
        let mut known = lock(&self.known);
        let (first, second) = keys;
        let opposite = known.get_mut(&(Arc::clone(&second), Arc::clone(&first)));
        if let Some(opposite) = opposite {
            let never_meet = order.others.iter().any(|key| opposite.others.contains(key));
            if never_meet || std::mem::replace(&mut opposite.is_reported, true) {
                return None;
            }
            return Some([opposite.first, opposite.second]);
        }
        if known.len() < MOST_ORDERS {
            known.entry((first, second)).or_insert(order);
        }
        None
    }

    fn report(&self, orders: &OppositeOrders<'_>) {
        match self.action {
            OrderAction::Warn => {
                let [first, second] = orders.keys;
                tracing::warn!(first, second, %orders, "two locks are taken in both orders");
            }
            #[cfg(feature = "testing")]
            OrderAction::Panic => panic!("possible deadlock: {orders}"),
        }
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

    fn note(orders: &LockOrders, first: &str, second: &str, others: &[&str]) -> bool {
        let others = others.iter().map(|key| Arc::from(*key)).collect();
        let order = KnownOrder { first: LABEL, second: LABEL, others, is_reported: false };
        orders.note((Arc::from(first), Arc::from(second)), order).is_some()
    }

    #[test]
    fn the_opposite_order_is_reported_once() {
        let orders = LockOrders::new(OrderAction::Warn);
        assert!(!note(&orders, "a", "b", &[]) && !note(&orders, "a", "b", &[]));
        assert!(!note(&orders, "b", "c", &[]) && !note(&orders, "a", "c", &[]));
        assert!(note(&orders, "b", "a", &[]));
        assert!(!note(&orders, "b", "a", &[]), "once");
    }

    #[test]
    fn bodies_under_a_common_lock_never_meet() {
        let orders = LockOrders::new(OrderAction::Warn);
        assert!(!note(&orders, "a", "b", &["gate"]));
        assert!(!note(&orders, "b", "a", &["gate"]));
        assert!(note(&orders, "b", "a", &["other"]));
    }

    #[test]
    fn the_number_of_orders_is_limited() {
        let orders = LockOrders::new(OrderAction::Warn);
        for n in 0..MOST_ORDERS + 10 {
            note(&orders, &format!("a{n}"), "b", &[]);
        }
        assert_eq!(lock(&orders.known).len(), MOST_ORDERS);
        assert!(note(&orders, "b", "a0", &[]), "those that are known still count");
    }
}
