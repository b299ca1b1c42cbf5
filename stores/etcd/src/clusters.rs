//! To which cluster a member belongs.
//!
//! Members of two clusters in one URL would give a lock to two owners, and the address of a member may lead to another
//! server later. Each answer of etcd names the cluster of the member.

use std::sync::atomic::Ordering;

use super::errors::EtcdFailure;
use super::member_list::Member;
use super::members::{Members, Method};
use super::messages::{MemberListRequest, MemberListResponse, ResponseHeader};
use lock_core::join::join_all;
use lock_core::store::patience::answer_within;
use lock_core::store::store_error::StoreError;
use lock_core::sync::lock;

impl Members {
    /// Fails if members that the URL names belong to different clusters. Those that do not answer are checked before their
    /// first requests.
    pub(super) async fn check_url(&self) -> Result<(), StoreError> {
        let named = lock(&self.known).named().to_vec();
        if named.len() == 1 {
            return Ok(());
        }
        let mut clusters = join_all(named.iter().map(|member| self.cluster_of(member))).await;
        if self.has_login() {
            for (member, cluster) in named.iter().zip(&mut clusters) {
                // All have waited for one token, which another cluster does not accept.
                if matches!(cluster, Err(EtcdFailure::LoggedOut(_) | EtcdFailure::NotHere(_))) {
                    *cluster = self.cluster_of(member).await;
                }
            }
        }
        let mut known = named
            .iter()
            .zip(clusters)
            .filter_map(|(member, cluster)| Some((&member.shown, cluster.ok()?)));
        let Some((first, cluster)) = known.next() else { return Ok(()) };
        let Some((other, _)) = known.find(|(_, other)| *other != cluster) else { return Ok(()) };
        let problem = format!(
            "{first} and {other} belong to different clusters of etcd; name the members of one cluster"
        );
        Err(StoreError::Config { option: "url", problem })
    }

    /// Makes sure that a member belongs to the same cluster as the others, before its first request and after each of its
    /// failures. Its address may lead to another server now.
    pub(super) async fn check_cluster(&self, member: &Member) -> Result<(), EtcdFailure> {
        if member.is_verified.load(Ordering::Relaxed) {
            return Ok(());
        }
        let cluster = match self.cluster_of(member).await {
            // Some versions tell it to the user `root` only. Grants are checked by their own answers.
            Err(failure) if failure.is_missing_permission() && !member.is_learned => {
                member.is_verified.store(true, Ordering::Relaxed);
                return Ok(());
            }
            cluster => cluster?,
        };
        let own = *lock(&self.cluster).get_or_insert(cluster);
        if own != cluster {
            // All members may have been restored from a backup.
            if member.is_learned || !self.is_of_majority(cluster).await {
                let problem = format!("{} belongs to another cluster", member.shown);
                return Err(EtcdFailure::NotHere(problem));
            }
            *lock(&self.cluster) = Some(cluster);
        }
        member.is_verified.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether most of the members that the URL names belong to this cluster.
    async fn is_of_majority(&self, cluster: u64) -> bool {
        let named = lock(&self.known).named().to_vec();
        let clusters = join_all(named.iter().map(|member| self.cluster_of(member))).await;
        let agreeing = clusters.iter().filter(|other| other.as_ref() == Ok(&cluster)).count();
        agreeing > named.len() / 2
    }

    /// The cluster to which a member belongs. Changes nothing.
    async fn cluster_of(&self, member: &Member) -> Result<u64, EtcdFailure> {
        let asked = async {
            let (request, token) = self.prepare(member, MemberListRequest {}).await?;
            let answered = self.send(member, Method::MEMBER_LIST, request).await;
            answered.map_err(|status| self.failure(member, &status, token.as_ref()))
        };
        let silent = || Err(EtcdFailure::NotHere(format!("{} does not answer", member.shown)));
        let answered = answer_within(self.patience(), asked).await.unwrap_or_else(silent);
        let list: MemberListResponse = answered.map_err(|failure| match failure {
            EtcdFailure::Unknown(cause) => EtcdFailure::NotHere(cause),
            failure if failure.is_missing_permission() => failure,
            // Another server may be at this address, and the other members may still be there.
            EtcdFailure::Refused(problem) => EtcdFailure::Unusable(problem),
            failure => failure,
        })?;
        Ok(list.header.map_or(0, |header| header.cluster_id))
    }

    /// Whether an answer comes from another cluster: the address of the current member leads there since its last request.
    pub(super) fn is_foreign(&self, header: Option<&ResponseHeader>) -> bool {
        let Some(found) = header.map(|header| header.cluster_id) else { return false };
        let own = *lock(&self.cluster).get_or_insert(found);
        if own != found {
            self.leave(self.current().number);
            return true;
        }
        false
    }
}
