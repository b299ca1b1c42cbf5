//! The members that a client knows, and the order in which it uses them: plain data.
//!
//! The URL names members, and the cluster lists the addresses that its members announce. Those may be of no use to this
//! client: by default, etcd announces `localhost`. So a client uses the members of the URL as long as one of them serves it.
//! When all of them have failed one after the other, it uses the listed ones that the URL does not name, and begins again
//! with the URL when these have failed as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use super::address::announced;
use super::messages::ListedMember;
use lock_core::store::per_runtime::PerRuntime;

/// How long a connection to a member may take to open.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A member.
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) endpoint: Endpoint,
    /// Its address, for messages.
    pub(super) shown: String,
    /// The connection of each runtime.
    pub(super) channel: PerRuntime<Channel>,
    /// Whether only the cluster lists it, and not the URL.
    pub(super) is_learned: bool,
    /// Whether it was found to belong to that cluster since it was chosen.
    pub(super) is_verified: AtomicBool,
    /// The number that it has in its cluster; zero if it is not known.
    pub(super) id: AtomicU64,
}

impl Member {
    pub(super) fn new(number: usize, endpoint: Endpoint, shown: String, is_learned: bool) -> Self {
        Self {
            number,
            endpoint,
            shown,
            channel: PerRuntime::default(),
            is_learned,
            is_verified: AtomicBool::new(false),
            id: AtomicU64::new(0),
        }
    }
}

/// The members that a client knows.
pub(super) struct MemberList {
    /// Those that the URL names.
    named: Vec<Arc<Member>>,
    /// Those that only the cluster lists. A place whose member is not listed any more is free.
    learned: Vec<Option<Arc<Member>>>,
    /// How many members have failed one after the other.
    failed: usize,
}

impl MemberList {
    pub(super) fn new(named: Vec<Member>) -> Self {
        let named = named.into_iter().map(Arc::new).collect();
        Self { named, learned: Vec::new(), failed: 0 }
    }

    /// Those that the URL names.
    pub(super) fn named(&self) -> &[Arc<Member>] {
        &self.named
    }

    /// The number of members.
    pub(super) fn len(&self) -> usize {
        self.named.len() + self.learned.iter().flatten().count()
    }

    /// The member with this number, which is the current one.
    pub(super) fn get(&self, number: usize) -> &Arc<Member> {
        let learned = number.checked_sub(self.named.len());
        let learned = learned.and_then(|place| self.learned.get(place)?.as_ref());
        learned.unwrap_or_else(|| &self.named[number.min(self.named.len() - 1)])
    }

    /// A member has served a request.
    pub(super) fn has_served(&mut self) {
        self.failed = 0;
    }

    /// The number of the member that is used instead of one that has failed.
    pub(super) fn next(&mut self, from: usize) -> usize {
        self.get(from).is_verified.store(false, Ordering::Relaxed);
        self.failed += 1;
        let named = self.named.len();
        if from < named && self.failed < named {
            return (from + 1) % named;
        }
        let first = (from + 1).saturating_sub(named);
        let mut places = self.learned.iter().enumerate();
        let learned =
            places.find(|(place, member)| member.is_some() && (from < named || *place >= first));
        if let Some((place, _)) = learned {
            return named + place;
        }
        self.failed = 0;
        if from < named { (from + 1) % named } else { 0 }
    }

    /// The cluster lists these members, by number in the cluster and address. Those that are new are made with `make`.
    pub(super) fn update(
        &mut self,
        current: usize,
        listed: &[(u64, String)],
        make: impl Fn(usize, &str) -> Option<Member>,
    ) {
        let named = self.named.len();
        let is_named = |(id, address): &(u64, String)| {
            let is_it = |member: &Arc<Member>| {
                member.shown == *address || member.id.load(Ordering::Relaxed) == *id
            };
            self.named.iter().any(is_it)
        };
        let mut listed: Vec<_> = listed.iter().filter(|one| !is_named(one)).collect();
        for (place, learned) in self.learned.iter_mut().enumerate() {
            let Some(member) = learned else { continue };
            let known = listed.iter().position(|(_, address)| member.shown == *address);
            match known {
                Some(known) => {
                    listed.swap_remove(known);
                }
                // Its requests are still under way.
                None if named + place == current => {}
                None => *learned = None,
            }
        }
        for (id, address) in listed {
            let is_known = |member: &Option<Arc<Member>>| {
                member.as_ref().is_some_and(|member| member.shown == *address)
            };
            if self.learned.iter().any(is_known) {
                continue;
            }
            let free = self.learned.iter().position(Option::is_none);
            let place = free.unwrap_or(self.learned.len());
            let Some(member) = make(named + place, address) else { continue };
            member.id.store(*id, Ordering::Relaxed);
            if free.is_none() {
                self.learned.push(None);
            }
            self.learned[place] = Some(Arc::new(member));
        }
    }
}

/// The addresses that these members announce, with the numbers of the members in their cluster, as far as they can be used.
pub(super) fn usable(listed: &[ListedMember], uses_tls: bool) -> Vec<(u64, String)> {
    let voters = listed.iter().filter(|member| !member.is_learner);
    let addresses = voters.flat_map(|member| {
        let addresses = member.client_urls.iter().filter_map(|url| announced(url, uses_tls));
        addresses.map(|address| (member.id, address))
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: usize, address: &str) -> Member {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        Member::new(number, endpoint, address.to_owned(), false)
    }

    fn named(addresses: &[&str]) -> MemberList {
        let members = addresses.iter().enumerate();
        MemberList::new(members.map(|(number, address)| member(number, address)).collect())
    }

    fn list(list: &mut MemberList, current: usize, listed: &[(u64, &str)]) {
        let listed: Vec<_> = listed.iter().map(|(id, text)| (*id, (*text).to_owned())).collect();
        list.update(current, &listed, |number, address| Some(member(number, address)));
    }

    /// The addresses of those that are used when each one fails, beginning with this one.
    fn order(list: &mut MemberList, from: usize, count: usize) -> Vec<String> {
        let mut current = from;
        let next = || {
            let shown = list.get(current).shown.clone();
            current = list.next(current);
            shown
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn members_of_the_url_take_turns() {
        let mut list = named(&["a:1", "b:1", "c:1"]);
        assert_eq!(order(&mut list, 1, 7), ["b:1", "c:1", "a:1", "b:1", "c:1", "a:1", "b:1"]);
        let mut one = named(&["a:1"]);
        assert_eq!(order(&mut one, 0, 3), ["a:1", "a:1", "a:1"]);
    }

    #[test]
    fn members_that_the_url_does_not_name_come_after_all_that_it_names() {
        let mut all = named(&["a:1", "b:1"]);
        list(&mut all, 0, &[(1, "a:1"), (3, "c:1"), (4, "d:1")]);
        assert_eq!(all.len(), 4);
        let expected = ["b:1", "a:1", "c:1", "d:1", "a:1", "b:1", "c:1"];
        assert_eq!(order(&mut all, 1, 7), expected);
        // A member that serves requests again does not count as failed.
        let mut all = named(&["a:1", "b:1"]);
        list(&mut all, 0, &[(3, "c:1")]);
        for _ in 0..3 {
            assert_eq!(all.next(0), 1);
            all.has_served();
            assert_eq!(all.next(1), 0);
            all.has_served();
        }
    }

    #[test]
    fn a_member_that_the_url_names_is_not_learned_under_another_address() {
        let mut one = named(&["balancer:1"]);
        one.get(0).id.store(7, Ordering::Relaxed);
        list(&mut one, 0, &[(7, "localhost:2379")]);
        assert_eq!(one.len(), 1);
        list(&mut one, 0, &[(7, "localhost:2379"), (8, "localhost:2379"), (9, "localhost:2379")]);
        assert_eq!(one.len(), 2, "an address is used once");
    }

    #[test]
    fn a_member_that_is_not_listed_any_more_is_forgotten_unless_it_is_in_use() {
        let mut all = named(&["a:1"]);
        list(&mut all, 0, &[(2, "b:1"), (3, "c:1")]);
        list(&mut all, 1, &[(4, "d:1")]);
        assert_eq!(order(&mut all, 0, 4), ["a:1", "b:1", "d:1", "a:1"]);
        list(&mut all, 0, &[(4, "d:1"), (5, "e:1")]);
        assert_eq!(order(&mut all, 0, 4), ["a:1", "e:1", "d:1", "a:1"]);
    }

    #[test]
    fn learners_and_addresses_of_the_other_scheme_are_not_used() {
        let listed = |id, urls: &[&str], is_learner| {
            let client_urls = urls.iter().map(ToString::to_string).collect();
            ListedMember { id, client_urls, is_learner }
        };
        let all = [
            listed(1, &["http://a:1", "https://b:2", "http://c:3"], false),
            listed(2, &["http://d:4"], true),
            listed(3, &[], false),
        ];
        assert_eq!(usable(&all, false), [(1, "a:1".into()), (1, "c:3".into())]);
        assert_eq!(usable(&all, true), [(1, "b:2".into())]);
    }
}
