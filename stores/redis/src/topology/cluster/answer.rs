//! The answers of the nodes of a cluster, and which of them to believe.
//!
//! Each master has a number that is higher after each failover and each move of a slot, the *epoch*
//! of its configuration, and the nodes themselves believe the master that claims a slot with the
//! highest epoch. The same rule is used here, among the answers of one round and from round to
//! round, so a node that was cut off, or that has not yet heard of a failover, does not mislead the
//! client. Without the epochs, for which a user may lack the permission, the answer that most nodes
//! give counts.

use std::collections::{HashMap, HashSet};

use redis::Value;

use crate::hash_slot::SLOTS;

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeAddress {
    pub(super) host: String,
    pub(super) port: u16,
    /// The name that its certificate is valid for, if that is not the host.
    pub(super) tls_name: Option<String>,
    /// The id by which the nodes know it; empty if it is unknown.
    pub(super) id: String,
}

/// A range of slots, and the master that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotClaim {
    first: u16,
    last: u16,
    master: NodeAddress,
    /// 0 if it is unknown.
    epoch: u64,
}

/// What one node says about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterAnswer {
    claims: Vec<SlotClaim>,
    /// The replicas of the masters.
    replicas: Vec<NodeAddress>,
    /// The ids of the masters that have no slots.
    idle: Vec<String>,
}

/// The masters and replicas of a cluster, and which master has which slot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotAssignment {
    pub(super) masters: Vec<NodeAddress>,
    pub(super) replicas: Vec<NodeAddress>,
    /// For each slot, the index of its master, and the epoch of that claim; 0 if it is unknown.
    pub(super) owners: Vec<Option<(usize, u64)>>,
    /// The ids of the masters that have no slots.
    pub(super) idle: HashSet<String>,
    /// Whether most of the known nodes have answered.
    pub(super) is_by_most: bool,
}

impl ClusterAnswer {
    /// Parses the replies to `CLUSTER SLOTS` and `CLUSTER NODES`. The second one may be missing.
    /// `asked` is the host of the node that has replied: nodes that do not know their own host omit
    /// it.
    pub(super) fn parse(slots: &Value, nodes: Option<&str>, asked: &str) -> Option<Self> {
        let epochs = nodes.map(epochs).unwrap_or_default();
        let Value::Array(ranges) = slots else { return None };
        let mut answer = Self::EMPTY;
        for range in ranges {
            let Value::Array(fields) = range else { return None };
            let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &fields[..] else {
                return None;
            };
            let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return None;
            }
            let replicas = replicas.iter().filter_map(|one| node(one, asked).ok());
            answer.replicas.extend(replicas);
            let master = match node(master, asked) {
                Ok(master) => master,
                // Another node may know it.
                Err(Unusable::NoAddress) => continue,
                Err(Unusable::Malformed) => return None,
            };
            let epoch = epochs.get(master.id.as_str()).copied().unwrap_or_default();
            answer.claims.push(SlotClaim { first, last, master, epoch });
        }
        let has_slots = |id: &str| answer.claims.iter().any(|claim| claim.master.id == id);
        let idle = nodes.into_iter().flat_map(working_masters).filter(|id| !has_slots(id));
        answer.idle = idle.map(str::to_owned).collect();
        Some(answer)
    }

    /// Whether two nodes that both know slots know no common master, so that they belong to
    /// different clusters.
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        let knows =
            |master: &NodeAddress| other.claims.iter().any(|claim| claim.master.is_node(master));
        let both_know = !self.claims.is_empty() && !other.claims.is_empty();
        both_know && !self.claims.iter().any(|claim| knows(&claim.master))
    }

    /// Whether the node that has answered belongs to another cluster than the nodes with these ids.
    pub(super) fn is_foreign_to(&self, ids: &HashSet<String>) -> bool {
        let mut own = self.claims.iter().map(|claim| &claim.master).chain(&self.replicas);
        let knows_ids = self.claims.iter().any(|claim| !claim.master.id.is_empty());
        !ids.is_empty() && knows_ids && !own.any(|node| ids.contains(&node.id))
    }

    /// The hosts and ports of all nodes in the answer.
    pub(super) fn addresses(&mut self) -> impl Iterator<Item = (&mut String, &mut u16)> {
        let masters = self.claims.iter_mut().map(|claim| &mut claim.master);
        masters.chain(&mut self.replicas).map(|node| (&mut node.host, &mut node.port))
    }
}

impl SlotAssignment {
    /// What the answers of one round say together. `is_by_most` tells whether most of the known
    /// nodes have answered.
    pub(super) fn of(mut answers: Vec<ClusterAnswer>, is_by_most: bool) -> Self {
        let count = |one: &ClusterAnswer| answers.iter().filter(|other| *other == one).count();
        let mut ranked: Vec<_> = answers.iter().map(count).zip(0..).collect();
        ranked.sort_by(|one, other| other.cmp(one));
        let mut assignment = Self { is_by_most, ..Self::default() };
        // For each slot, its master and the epoch of that claim.
        let mut owners = vec![(None, 0); SLOTS.into()];
        for (_, index) in ranked {
            let ClusterAnswer { claims, replicas, idle } =
                std::mem::replace(&mut answers[index], ClusterAnswer::EMPTY);
            assignment.idle.extend(idle);
            for SlotClaim { first, last, master, epoch } in claims {
                let known = assignment.masters.iter().position(|known| known.is_at(&master));
                let master = known.unwrap_or_else(|| {
                    assignment.masters.push(master);
                    assignment.masters.len() - 1
                });
                for owner in &mut owners[usize::from(first)..=usize::from(last)] {
                    let is_newer = epoch > owner.1;
                    if owner.0.is_none() || is_newer {
                        *owner = (Some(master), epoch);
                    }
                }
            }
            for replica in replicas {
                if !assignment.replicas.iter().any(|known| known.is_at(&replica)) {
                    assignment.replicas.push(replica);
                }
            }
        }
        let owner = |(master, epoch): (Option<usize>, u64)| master.map(|master| (master, epoch));
        assignment.owners = owners.into_iter().map(owner).collect();
        assignment
    }

    /// All nodes of the cluster.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeAddress> {
        self.masters.iter().chain(&self.replicas)
    }
}

impl ClusterAnswer {
    const EMPTY: Self = Self { claims: Vec::new(), replicas: Vec::new(), idle: Vec::new() };
}

impl NodeAddress {
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }

    /// Whether this is the same node: by its id, or by its address if an id is unknown.
    fn is_node(&self, other: &Self) -> bool {
        if self.id.is_empty() || other.id.is_empty() {
            return self.is_at(other);
        }
        self.id == other.id
    }
}

/// The epochs of the masters by id, from the reply to `CLUSTER NODES`.
fn epochs(nodes: &str) -> HashMap<&str, u64> {
    nodes.lines().filter_map(epoch).collect()
}

/// The ids of the masters that have not failed, from the reply to `CLUSTER NODES`.
fn working_masters(nodes: &str) -> impl Iterator<Item = &str> {
    nodes.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (id, flags) = (fields.next()?, fields.nth(1)?);
        let has_failed = flags.split(',').any(|flag| flag.starts_with("fail"));
        (flags.split(',').any(|flag| flag == "master") && !has_failed).then_some(id)
    })
}

/// The id and the epoch of a master, from its line.
fn epoch(line: &str) -> Option<(&str, u64)> {
    let mut fields = line.split(' ');
    let (id, flags) = (fields.next()?, fields.nth(1)?);
    let epoch = fields.nth(3)?.parse().ok()?;
    // A failed master keeps its flag.
    flags.split(',').any(|flag| flag == "master").then_some((id, epoch))
}

/// Why the description of a node cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    Malformed,
    /// The node that has answered does not know the address.
    NoAddress,
}

/// One node in the reply to `CLUSTER SLOTS`.
fn node(value: &Value, asked: &str) -> Result<NodeAddress, Unusable> {
    let Value::Array(fields) = value else { return Err(Unusable::Malformed) };
    let [host, Value::Int(port), rest @ ..] = &fields[..] else {
        return Err(Unusable::Malformed);
    };
    let port = u16::try_from(*port).map_err(|_| Unusable::Malformed)?;
    let host = match host {
        Value::Nil => String::new(),
        host => text(host).ok_or(Unusable::Malformed)?,
    };
    let metadata = |name| rest.get(1).and_then(|metadata| field(metadata, name));
    let host = match host.as_str() {
        "" => asked.to_owned(),
        // The nodes announce host names, and this one's is not known yet.
        "?" => metadata("ip").ok_or(Unusable::NoAddress)?,
        _ => host,
    };
    let id = rest.first().and_then(text).unwrap_or_default();
    let tls_name = metadata("hostname").filter(|name| *name != host);
    Ok(NodeAddress { host, port, tls_name, id })
}

/// A field in the metadata of a node.
fn field(metadata: &Value, wanted: &str) -> Option<String> {
    let is_it = |name: &Value| text(name).is_some_and(|name| name == wanted);
    let found = match metadata {
        Value::Map(fields) => fields.iter().find(|(name, _)| is_it(name)).map(|(_, value)| value),
        Value::Array(fields) => {
            fields.chunks_exact(2).find(|field| is_it(&field[0])).map(|field| &field[1])
        }
        _ => None,
    };
    text(found?).filter(|name| !name.is_empty())
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn described(host: Value, port: i64, id: &str) -> Value {
        Value::Array(vec![host, Value::Int(port), string(id), Value::Map(Vec::new())])
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
    }

    /// An answer in which the master at each port has a range of slots with an epoch.
    fn answer(claims: &[(u16, u16, u16, u64)]) -> ClusterAnswer {
        let claim = |(first, last, port, epoch): &(u16, u16, u16, u64)| SlotClaim {
            first: *first,
            last: *last,
            master: NodeAddress {
                host: "h".into(),
                port: *port,
                tls_name: None,
                id: port.to_string(),
            },
            epoch: *epoch,
        };
        ClusterAnswer { claims: claims.iter().map(claim).collect(), ..ClusterAnswer::EMPTY }
    }

    /// The ports of the masters of some slots.
    fn owners(answers: &[ClusterAnswer], slots: &[usize]) -> Vec<u16> {
        let assignment = SlotAssignment::of(answers.to_vec(), true);
        let port = |slot: &usize| {
            assignment.owners[*slot].map_or(0, |(owner, _)| assignment.masters[owner].port)
        };
        slots.iter().map(port).collect()
    }

    #[test]
    fn slots_are_read_with_their_masters_and_epochs() {
        let slots = Value::Array(vec![
            range(
                0,
                99,
                vec![
                    described(string("10.0.0.1"), 7000, "aa"),
                    described(string("10.0.0.2"), 7001, "bb"),
                ],
            ),
            range(100, 16_383, vec![described(Value::Nil, 7002, "cc")]),
        ]);
        let nodes = "aa 10.0.0.1:7000@17000 master - 0 0 4 connected 0-99\n\
                     bb 10.0.0.2:7001@17001 slave aa 0 0 9 connected\n\
                     cc :7002@17002 myself,master - 0 0 7 connected 100-16383\n";
        let answer = ClusterAnswer::parse(&slots, Some(nodes), "asked").expect("valid");
        let claims: Vec<_> = answer.claims.iter().map(|c| (c.master.port, c.epoch)).collect();
        assert_eq!(claims, [(7000, 4), (7002, 7)]);
        assert_eq!(answer.claims[1].master.host, "asked");
        assert_eq!(answer.replicas[0].port, 7001);
    }

    #[test]
    fn a_node_that_does_not_know_its_host_is_the_one_that_was_asked() {
        for host in [string(""), Value::Nil] {
            let node = node(&described(host, 1, "id"), "asked").expect("valid");
            assert_eq!((node.host.as_str(), node.tls_name), ("asked", None));
        }
        let metadata = Value::Map(vec![(string("hostname"), string("one.example"))]);
        let flat = Value::Array(vec![string("hostname"), string("one.example")]);
        for metadata in [metadata, flat] {
            let described =
                Value::Array(vec![string("10.0.0.1"), Value::Int(1), string("id"), metadata]);
            let node = node(&described, "asked").expect("valid");
            assert_eq!(node.host, "10.0.0.1");
            assert_eq!(node.tls_name.as_deref(), Some("one.example"));
        }
    }

    #[test]
    fn an_invalid_reply_is_no_answer() {
        for slots in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, vec![described(string("h"), 1, "id")])]),
            Value::Array(vec![range(0, 1, vec![])]),
            Value::Array(vec![range(0, 1, vec![described(string("h"), 70_000, "id")])]),
        ] {
            assert_eq!(ClusterAnswer::parse(&slots, None, "asked"), None, "{slots:?}");
        }
    }

    #[test]
    fn the_master_with_the_highest_epoch_has_the_slot() {
        let (old, new) = (answer(&[(0, 9, 1, 4)]), answer(&[(0, 9, 2, 5)]));
        for answers in [[old.clone(), old.clone(), new.clone()], [new, old.clone(), old]] {
            assert_eq!(owners(&answers, &[0, 9, 10]), [2, 2, 0]);
        }
        let moved = answer(&[(0, 4, 1, 4), (5, 9, 3, 6)]);
        assert_eq!(owners(&[answer(&[(0, 9, 1, 4)]), moved], &[4, 5]), [1, 3]);
    }

    #[test]
    fn without_epochs_the_answer_that_most_nodes_give_counts() {
        let (old, new) = (answer(&[(0, 9, 1, 0)]), answer(&[(0, 9, 2, 0)]));
        assert_eq!(owners(&[old.clone(), new.clone(), new], &[0]), [2]);
        assert_eq!(owners(&[], &[0]), [0]);
        assert_eq!(owners(&[old], &[0]), [1]);
    }

    #[test]
    fn nodes_without_a_common_master_belong_to_different_clusters() {
        let (one, other) = (answer(&[(0, 9, 1, 1)]), answer(&[(0, 9, 2, 1)]));
        assert!(one.contradicts(&other));
        assert!(!one.contradicts(&answer(&[(0, 4, 1, 1), (5, 9, 2, 1)])));
        assert!(!one.contradicts(&answer(&[])), "a node without slots may be new");
    }

    #[test]
    fn an_answer_without_a_known_node_is_that_of_another_cluster() {
        let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<HashSet<_>>();
        let one = answer(&[(0, 4, 1, 1), (5, 9, 2, 1)]);
        assert!(one.is_foreign_to(&ids(&["3"])));
        assert!(!one.is_foreign_to(&ids(&["2", "3"])));
        assert!(!one.is_foreign_to(&ids(&[])), "before the first round");
        assert!(!answer(&[]).is_foreign_to(&ids(&["3"])), "a node without slots may be new");
    }

    #[test]
    fn a_master_whose_host_name_is_not_known_yet_is_at_its_ip_address_or_left_out() {
        let ip = Value::Map(vec![(string("ip"), string("10.0.0.7"))]);
        let without = Value::Array(vec![string("?"), Value::Int(1), string("a"), Value::Nil]);
        let with = Value::Array(vec![string("?"), Value::Int(2), string("b"), ip]);
        let slots = Value::Array(vec![range(0, 9, vec![without]), range(10, 19, vec![with])]);
        let answer = ClusterAnswer::parse(&slots, None, "asked").expect("valid");
        let claims: Vec<_> = answer.claims.iter().map(|claim| claim.first).collect();
        assert_eq!(claims, [10]);
        assert_eq!(answer.claims[0].master.host, "10.0.0.7");
    }

    #[test]
    fn masters_without_slots_are_told_apart_from_those_that_have_failed() {
        let slots = Value::Array(vec![range(0, 9, vec![described(string("h"), 1, "aa")])]);
        let nodes = "aa h:1@2 master - 0 0 4 connected 0-9\n\
                     bb h:2@2 master - 0 0 9 connected\n\
                     cc h:3@2 master,fail - 0 0 9 connected\n\
                     dd h:4@2 slave aa 0 0 9 connected\n";
        let answer = ClusterAnswer::parse(&slots, Some(nodes), "asked").expect("valid");
        assert_eq!(answer.idle, ["bb"]);
    }
}
