//! The slots of a cluster and the masters that have them, as far as the client knows.
//!
//! A request reads its slot without waiting. A redirection changes one slot at once. A whole
//! assignment, which was read from the nodes, changes all slots but those that were redirected
//! after it was read, and those of which a newer claim is known.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::answer::{NodeAddress, SlotAssignment};
use super::node::ClusterNode;
use super::trouble::Trouble;
use crate::hash_slot::SLOTS;
use crate::transport::endpoint::{Address, Endpoint};
use lock_core::clock::BootInstant;
use lock_core::sync::{Mutex, lock};

/// How long most nodes have to name a master with a lower epoch until it is used. This happens after
/// a reset of the cluster. Nodes that can reach each other agree sooner.
const DISAGREE_AFTER: Duration = Duration::from_secs(10);

/// How long a node that only a redirection has named stays known: long enough for a slot to be
/// moved to a new node, which has no slots until then.
const KEPT_AFTER_NAMED: Duration = Duration::from_secs(10);

pub(super) struct SlotTable {
    /// For each slot, the number of its master, or 0.
    owners: Box<[AtomicU32]>,
    masters: Mutex<Masters>,
    trouble: Arc<Trouble>,
}

#[derive(Default)]
struct Masters {
    all: Vec<Master>,
    last_number: u32,
    /// When these slots were last redirected.
    redirected: HashMap<u16, BootInstant>,
    /// For each slot, the highest epoch with which its owner has claimed it; 0 if it is unknown.
    epochs: Vec<u64>,
    /// Since when most nodes have named masters with lower epochs.
    lower_since: Option<BootInstant>,
}

struct Master {
    node: Arc<ClusterNode>,
    /// Empty if it is unknown.
    id: String,
    /// When a redirection last named it.
    named: Option<BootInstant>,
    /// Whether it had slots by the latest assignment.
    had_slots: bool,
}

/// What a new assignment has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotChanges {
    /// Whether any slot has another master.
    pub(super) any: bool,
    /// The masters that had slots and are no longer masters, and the ones that have their slots now.
    pub(super) replaced: Vec<(String, String)>,
}

impl SlotTable {
    /// A table without masters. Their failures count as `trouble`.
    pub(super) fn new(trouble: Arc<Trouble>) -> Self {
        let owners = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Self { owners, masters: Mutex::default(), trouble }
    }

    /// The number of the master that has a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<u32> {
        let owner = self.owners[usize::from(slot)].load(Ordering::Acquire);
        (owner != 0).then_some(owner)
    }

    /// The master with this number, if it is one still.
    pub(super) fn node(&self, number: u32) -> Option<Arc<ClusterNode>> {
        let masters = lock(&self.masters);
        let found = masters.all.iter().find(|master| master.node.number() == number);
        found.map(|master| Arc::clone(&master.node))
    }

    /// All masters.
    pub(super) fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        lock(&self.masters).all.iter().map(|master| Arc::clone(&master.node)).collect()
    }

    /// The node to which a request was redirected. `endpoint` describes it if it is not known.
    pub(super) fn named(
        &self,
        address: &NodeAddress,
        now: BootInstant,
        endpoint: impl Fn(&NodeAddress) -> Endpoint,
    ) -> Arc<ClusterNode> {
        let mut masters = lock(&self.masters);
        let index = masters.find_or_add(address, &self.trouble, endpoint);
        let master = &mut masters.all[index];
        master.named = Some(now);
        Arc::clone(&master.node)
    }

    /// Records that the node has a slot, to which a request was redirected. Returns whether that
    /// is new.
    pub(super) fn redirect(&self, slot: u16, node: &ClusterNode, now: BootInstant) -> bool {
        let mut masters = lock(&self.masters);
        masters.redirected.insert(slot, now);
        self.owners[usize::from(slot)].swap(node.number(), Ordering::AcqRel) != node.number()
    }

    /// Uses an assignment that was requested at `since`.
    pub(super) fn adopt(
        &self,
        assignment: &SlotAssignment,
        since: BootInstant,
        endpoint: impl Fn(&NodeAddress) -> Endpoint,
    ) -> SlotChanges {
        let now = BootInstant::now();
        let mut changes = SlotChanges::default();
        let mut masters = lock(&self.masters);
        let masters = &mut *masters;
        masters.redirected.retain(|_, at| *at > since);
        let assigned: Vec<u32> = assignment
            .masters
            .iter()
            .map(|address| {
                let index = masters.find_or_add(address, &self.trouble, &endpoint);
                masters.all[index].node.number()
            })
            .collect();
        masters.epochs.resize(SLOTS.into(), 0);
        let insists = masters.lower_since.is_some_and(|at| now.since(at) >= DISAGREE_AFTER);
        let mut has_lower = false;
        // The earlier owners of slots, and the new owner of one of these slots.
        let mut successors = HashMap::new();
        for ((slot, owner), known) in (0..SLOTS).zip(&self.owners).zip(&mut masters.epochs) {
            let earlier = owner.load(Ordering::Relaxed);
            if masters.redirected.contains_key(&slot) {
                // The epoch of the owner is not known yet.
                *known = 0;
                continue;
            }
            let new = match assignment.owners[usize::from(slot)] {
                None if assignment.is_by_most => 0,
                None => earlier,
                Some((index, epoch)) => {
                    let is_lower = epoch != 0 && epoch < *known && assigned[index] != earlier;
                    has_lower |= is_lower;
                    if is_lower && !(insists && assignment.is_by_most) {
                        earlier
                    } else {
                        *known = if assigned[index] == earlier { epoch.max(*known) } else { epoch };
                        assigned[index]
                    }
                }
            };
            if new != earlier {
                successors.insert(earlier, new);
                changes.any = true;
                owner.store(new, Ordering::Release);
            }
        }
        let is_by_most = has_lower && assignment.is_by_most && !insists;
        masters.lower_since = if is_by_most { masters.lower_since.or(Some(now)) } else { None };
        // The lowest and the highest slot of each owner.
        let mut outer_slots = HashMap::new();
        for (slot, owner) in (0..SLOTS).zip(&self.owners) {
            let outer = outer_slots.entry(owner.load(Ordering::Relaxed)).or_insert((slot, slot));
            outer.1 = slot;
        }
        let shown: HashMap<u32, String> = masters
            .all
            .iter()
            .map(|master| (master.node.number(), master.node.server().shown().to_owned()))
            .collect();
        masters.all.retain_mut(|master| {
            let number = master.node.number();
            let outer = outer_slots.get(&number).copied();
            master.node.set_outer_slots(outer);
            let had_slots = std::mem::replace(&mut master.had_slots, outer.is_some());
            if master.had_slots {
                return true;
            }
            if had_slots && assignment.idle.contains(&master.id) {
                // All its slots were moved away, and it redirects the requests in flight.
                master.named = Some(now);
                return true;
            }
            let is_kept = master.named.is_some_and(|at| now.since(at) < KEPT_AFTER_NAMED);
            if is_kept && !had_slots {
                return true;
            }
            if had_slots {
                let successor = successors.get(&number).and_then(|new| shown.get(new));
                let successor = successor.cloned().unwrap_or_default();
                changes.replaced.push((shown[&number].clone(), successor));
            }
            master.node.replace();
            false
        });
        changes
    }
}

impl Masters {
    /// The index of the master at this address.
    fn find_or_add(
        &mut self,
        address: &NodeAddress,
        trouble: &Arc<Trouble>,
        endpoint: impl Fn(&NodeAddress) -> Endpoint,
    ) -> usize {
        let is_it = |master: &Master| match master.node.server().address() {
            Address::Tcp { host, port } => {
                let has_name = master.node.server().tls_name() == address.tls_name.as_deref();
                *host == address.host
                    && *port == address.port
                    && (has_name || address.tls_name.is_none())
            }
            #[cfg(unix)]
            Address::Unix(_) => false,
        };
        self.all.iter().position(is_it).unwrap_or_else(|| {
            self.last_number += 1;
            let node = Arc::new(ClusterNode::new(
                self.last_number,
                endpoint(address),
                Arc::clone(trouble),
            ));
            let id = address.id.clone();
            self.all.push(Master { node, id, named: None, had_slots: false });
            self.all.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisConnectionInfo;

    use super::*;
    use crate::transport::endpoint::Access;
    use crate::transport::login::Login;

    fn endpoint(address: &NodeAddress) -> Endpoint {
        let access = Access::new(Login::new(RedisConnectionInfo::default(), None), "test");
        Endpoint::tcp(&address.host, address.port, access)
    }

    fn address(port: u16) -> NodeAddress {
        NodeAddress { host: "h".into(), port, tls_name: None, id: port.to_string() }
    }

    /// Slots 0 to 99 and all others have the masters at these ports.
    fn assignment(first: u16, others: u16) -> SlotAssignment {
        assignment_of(first, others, 0)
    }

    /// The same, with an epoch.
    fn assignment_of(first: u16, others: u16, epoch: u64) -> SlotAssignment {
        let owner = |slot| Some((usize::from(slot >= 100), epoch));
        SlotAssignment {
            masters: vec![address(first), address(others)],
            owners: (0..SLOTS).map(owner).collect(),
            is_by_most: true,
            ..SlotAssignment::default()
        }
    }

    fn adopt(table: &SlotTable, assignment: &SlotAssignment) -> SlotChanges {
        table.adopt(assignment, BootInstant::now(), endpoint)
    }

    fn port(table: &SlotTable, slot: u16) -> Option<u16> {
        let node = table.node(table.owner(slot)?)?;
        let Address::Tcp { port, .. } = node.server().address() else { return None };
        Some(*port)
    }

    #[test]
    fn a_master_keeps_its_number_until_another_one_takes_its_place() {
        let table = SlotTable::new(Arc::default());
        assert_eq!((table.owner(0), table.nodes().len()), (None, 0));
        let first = adopt(&table, &assignment(1, 2));
        assert_eq!(first, SlotChanges { any: true, replaced: Vec::new() });
        assert_eq!(adopt(&table, &assignment(1, 2)), SlotChanges::default());
        let (one, two) = (table.owner(0).expect("known"), table.owner(100).expect("known"));

        let node = table.node(one).expect("known");
        let changes = adopt(&table, &assignment(3, 2));
        assert_eq!(changes.replaced, [("h:1".to_owned(), "h:3".to_owned())]);
        assert!(!node.is_current() && table.node(one).is_none());
        assert_eq!((port(&table, 99), table.owner(100)), (Some(3), Some(two)));

        adopt(&table, &assignment(1, 2));
        assert_ne!(table.owner(0), Some(one), "a number is never used again");
        assert_eq!(port(&table, 0), Some(1));
    }

    #[test]
    fn a_redirection_changes_one_slot_and_outlasts_answers_that_were_requested_before() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment(1, 2));
        let before = BootInstant::now();
        let after = BootInstant::now().after(Duration::from_millis(1));
        let node = table.named(&address(2), after, endpoint);
        table.redirect(7, &node, after);
        assert_eq!((port(&table, 7), port(&table, 8)), (Some(2), Some(1)));
        assert_eq!(table.adopt(&assignment(1, 2), before, endpoint), SlotChanges::default());
        assert_eq!(port(&table, 7), Some(2));
        let later = after.after(Duration::from_millis(1));
        assert!(table.adopt(&assignment(1, 2), later, endpoint).any);
        assert_eq!(port(&table, 7), Some(1));
    }

    #[test]
    fn a_new_node_that_a_redirection_names_stays_for_a_while() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment(1, 2));
        let new = table.named(&address(3), BootInstant::now(), endpoint);
        adopt(&table, &assignment(1, 2));
        assert!(new.is_current());
        assert!(Arc::ptr_eq(&new, &table.named(&address(3), BootInstant::PAST, endpoint)));
        assert_eq!(adopt(&table, &assignment(1, 2)), SlotChanges::default());
        assert!(!new.is_current(), "it never got a slot");
    }

    #[test]
    fn slots_that_no_master_claims_have_none() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment(1, 2));
        let mut without = assignment(1, 2);
        without.owners[5] = None;
        without.is_by_most = false;
        assert!(!adopt(&table, &without).any, "most nodes have not answered");
        without.is_by_most = true;
        assert!(adopt(&table, &without).any);
        assert_eq!((table.owner(5), port(&table, 6)), (None, Some(1)));
    }

    #[test]
    fn a_claim_with_a_lower_epoch_is_that_of_a_node_that_is_behind() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment_of(1, 2, 4));
        assert_eq!(adopt(&table, &assignment_of(3, 2, 5)).replaced.len(), 1);
        assert_eq!(adopt(&table, &assignment_of(1, 2, 4)), SlotChanges::default());
        assert_eq!(port(&table, 0), Some(3));
        assert!(adopt(&table, &assignment_of(4, 2, 6)).any);
        assert_eq!(port(&table, 0), Some(4));
        // The nodes have begun anew.
        assert_eq!(adopt(&table, &assignment_of(1, 2, 1)), SlotChanges::default());
        let long_ago = lock(&table.masters).lower_since.expect("most nodes say so");
        let long_ago = BootInstant::from_nanos(
            long_ago.as_nanos() - u64::try_from(DISAGREE_AFTER.as_nanos()).expect("short"),
        );
        lock(&table.masters).lower_since = Some(long_ago);
        assert!(adopt(&table, &assignment_of(1, 2, 1)).any);
        assert_eq!(port(&table, 0), Some(1));
    }

    #[test]
    fn a_master_whose_slots_were_all_moved_away_is_not_replaced() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment(1, 2));
        let node = table.node(table.owner(0).expect("known")).expect("known");
        let mut drained = assignment(2, 2);
        drained.masters.truncate(1);
        drained.owners.fill(Some((0, 0)));
        drained.idle.insert("1".into());
        let changes = adopt(&table, &drained);
        assert_eq!((changes.any, changes.replaced), (true, Vec::new()));
        assert!(node.is_current(), "it answers the requests in flight");
    }

    #[test]
    fn a_master_that_redirected_all_its_slots_has_been_replaced() {
        let table = SlotTable::new(Arc::default());
        adopt(&table, &assignment(1, 2));
        let now = BootInstant::now();
        let new = table.named(&address(3), now, endpoint);
        for slot in 0..100 {
            assert!(table.redirect(slot, &new, now));
        }
        assert!(!table.redirect(7, &new, now), "it is known");
        assert_eq!(adopt(&table, &assignment(3, 2)).replaced.len(), 1);
    }

    #[test]
    fn a_node_that_a_redirection_has_named_gets_its_tls_name_later() {
        let table = SlotTable::new(Arc::default());
        let with_name =
            |address: &NodeAddress| endpoint(address).with_tls_name(address.tls_name.clone());
        let before = table.named(&address(1), BootInstant::now(), with_name);
        let named = NodeAddress { tls_name: Some("one".into()), ..address(1) };
        let after = table.named(&named, BootInstant::now(), with_name);
        assert!(!Arc::ptr_eq(&before, &after));
        assert_eq!(after.server().tls_name(), Some("one"));
        assert!(Arc::ptr_eq(&after, &table.named(&named, BootInstant::now(), with_name)));
    }
}
