//! Custom stores: a client with one, and the checks of stores, each of which finds the flaws that it is there for.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::conformance::CheckedStore;
use lock_runtime::store::runner::{
    AsyncBackend, AsyncClient, LeasePage, LeaseRequest, LeaseScan, Owned, RunsOn, StoredLease,
    WakeUps,
};
use lock_runtime::store::{
    Acquired, Backend, Extension, Extensions, Fenced, Grant, Left, OpenStore, Released, Renewed,
    Settings, StoreError,
};
use lock_runtime::{
    HolderKind, LockClient, LockError, LostReason, Replicas, WireFormat, conformance,
    distributed_lock, with_client,
};
use tokio::runtime;

const LEASE: Duration = Duration::from_millis(600);

/// What is wrong with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    GrantsTakenKeys,
    GrantsBetweenLookAndWrite,
    RefusesTheSecondRequest,
    SecondRequestShortens,
    LeasesNeverEnd,
    LeasesEndEarly,
    AnybodyRenews,
    RenewalRevives,
    RenewalShortens,
    RenewalDoesNothing,
    RenewalsAreMixedUp,
    RenewalsAreMissing,
    AnybodyReleases,
    ReleaseIsForgotten,
    ReleaseTwice,
    KeysIgnoreCase,
    KeysAreTrimmed,
    KeysAreCut,
    KeptForEver,
    KeptForNoTime,
    TokensFall,
    TokensAreTooLow,
    TokensForAnybody,
    TokensOfTheDead,
    TellsAnybody,
    TellsOwnersOfKeptKeys,
    ScanForgetsKeys,
    ScanRepeatsKeys,
    ScanIgnoresTheLimit,
    ScanNeverEnds,
    DroppedRequestsNeverEnd,
}

#[derive(Debug, Clone)]
struct Entry {
    /// `None` after a release of a key that is kept.
    owner: Option<String>,
    end: Instant,
}

#[derive(Debug, Default)]
struct Rows {
    entries: HashMap<String, Entry>,
    token: u64,
    watched: HashSet<String>,
    /// The keys of all requests to watch one.
    watch_requests: Vec<String>,
    wake_ups: Vec<WakeUps>,
}

/// A store in memory, on which clients may disagree.
#[derive(Clone)]
struct Table {
    flaw: Flaw,
    rows: Arc<Mutex<Rows>>,
    fault: Arc<Mutex<Fault>>,
    acquires: Arc<AtomicUsize>,
    /// The runtimes of all acquires and releases.
    runtimes: Arc<Mutex<HashSet<runtime::Id>>>,
    is_notifying: bool,
    runs_on_callers: bool,
    has_extensions: bool,
}

/// What happens to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Panic,
    /// No request ends.
    Hang,
    /// Acquires take this time before they take effect.
    Slow(Duration),
    Refuse,
    /// This key cannot be watched, and the request does not end.
    HangingWatch(&'static str),
}

impl Table {
    fn new(flaw: Flaw) -> Self {
        let (rows, fault) = (Arc::default(), Arc::new(Mutex::new(Fault::None)));
        let (acquires, runtimes) = (Arc::default(), Arc::default());
        let (is_notifying, runs_on_callers, has_extensions) = (false, false, true);
        Self {
            flaw,
            rows,
            fault,
            acquires,
            runtimes,
            is_notifying,
            runs_on_callers,
            has_extensions,
        }
    }

    fn notifying() -> Self {
        Self { is_notifying: true, ..Self::new(Flaw::None) }
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    async fn fail(&self) -> Result<(), StoreError> {
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::None | Fault::HangingWatch(_) => Ok(()),
            // Prints nothing, which would take long.
            Fault::Panic => resume_unwind(Box::new("the store has a bug")),
            Fault::Hang => std::future::pending().await,
            Fault::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Fault::Refuse => Err(StoreError::Refused("it is being repaired".to_owned())),
        }
    }

    fn key(&self, key: &str) -> String {
        match self.flaw {
            Flaw::KeysIgnoreCase => key.to_lowercase(),
            Flaw::KeysAreTrimmed => key.trim().to_owned(),
            Flaw::KeysAreCut => key.chars().take(1000).collect(),
            _ => key.to_owned(),
        }
    }

    fn live(&self, rows: &Rows, key: &str) -> Option<Entry> {
        let now = Instant::now();
        let entry = rows.entries.get(&self.key(key))?;
        (entry.end > now || self.flaw == Flaw::LeasesNeverEnd).then(|| entry.clone())
    }

    /// What operators read about an entry.
    fn stored(&self, key: &str, entry: Entry) -> StoredLease {
        let left = entry.end.saturating_duration_since(Instant::now());
        match (self.flaw, entry.owner) {
            (Flaw::TellsAnybody, _) => StoredLease::new(key, "anybody", Some(left)),
            (_, Some(owner)) => StoredLease::new(key, owner, Some(left)),
            (Flaw::TellsOwnersOfKeptKeys, None) => StoredLease::new(key, "somebody", Some(left)),
            (_, None) => StoredLease::kept(key, left),
        }
    }

    fn write(&self, rows: &mut Rows, key: &str, owner: Option<&str>, end: Instant) {
        rows.entries.insert(self.key(key), Entry { owner: owner.map(ToOwned::to_owned), end });
    }
}

impl AsyncClient for Table {
    async fn connect(self: &Arc<Self>, wake_ups: WakeUps) -> Result<(), StoreError> {
        self.fail().await?;
        self.rows.lock().unwrap().wake_ups.push(wake_ups);
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.fail().await
    }

    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        let (owned, wanted) = (&request.owned, request.term);
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.runtimes.lock().unwrap().insert(runtime::Handle::current().id());
        self.fail().await?;
        let found = self.live(&self.rows.lock().unwrap(), &owned.key);
        if self.flaw == Flaw::GrantsBetweenLookAndWrite {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut rows = self.rows.lock().unwrap();
        let found = match self.flaw {
            Flaw::GrantsBetweenLookAndWrite => found,
            _ => self.live(&rows, &owned.key),
        };
        let term = match self.flaw {
            Flaw::LeasesEndEarly => wanted / 2,
            Flaw::DroppedRequestsNeverEnd => wanted + Duration::from_secs(3600),
            _ => wanted,
        };
        let mut end = Instant::now() + term;
        if let Some(entry) = found.filter(|_| self.flaw != Flaw::GrantsTakenKeys) {
            let is_own = entry.owner.as_deref() == Some(&owned.owner);
            if !is_own || self.flaw == Flaw::RefusesTheSecondRequest {
                let left = entry.end.saturating_duration_since(Instant::now());
                return Ok(Acquired::Busy(Left::Time(left)));
            }
            if self.flaw != Flaw::SecondRequestShortens {
                end = end.max(entry.end);
            }
        }
        self.write(&mut rows, &owned.key, Some(&owned.owner), end);
        Ok(Acquired::Granted(Grant::of(wanted)))
    }

    async fn renew(&self, leases: &[(Owned, Duration)]) -> Vec<Result<Renewed, StoreError>> {
        if let Err(error) = self.fail().await {
            return vec![Err(error); leases.len()];
        }
        let mut rows = self.rows.lock().unwrap();
        let mut renew = |(owned, term): &(Owned, Duration)| {
            let end = Instant::now() + *term;
            let entry = match self.live(&rows, &owned.key) {
                Some(entry) => entry,
                None if self.flaw == Flaw::RenewalRevives => {
                    self.write(&mut rows, &owned.key, Some(&owned.owner), end);
                    return Renewed::Extended;
                }
                None => return Renewed::Gone,
            };
            let is_own = entry.owner.as_deref() == Some(&owned.owner);
            if !is_own && self.flaw != Flaw::AnybodyRenews {
                return Renewed::Taken;
            }
            let end = match self.flaw {
                Flaw::RenewalShortens => end,
                Flaw::RenewalDoesNothing => entry.end,
                _ => end.max(entry.end),
            };
            self.write(&mut rows, &owned.key, entry.owner.as_deref(), end);
            Renewed::Extended
        };
        let mut renewed: Vec<_> = leases.iter().map(|lease| Ok(renew(lease))).collect();
        match self.flaw {
            Flaw::RenewalsAreMixedUp => renewed.reverse(),
            Flaw::RenewalsAreMissing => renewed.truncate(leases.len() / 2 + 1),
            _ => {}
        }
        renewed
    }

    async fn fence(&self, owned: &Owned, at_least: u64) -> Result<Fenced, StoreError> {
        self.fail().await?;
        let mut rows = self.rows.lock().unwrap();
        match self.live(&rows, &owned.key) {
            None if self.flaw != Flaw::TokensOfTheDead => return Ok(Fenced::Gone),
            Some(entry)
                if entry.owner.as_deref() != Some(&*owned.owner)
                    && self.flaw != Flaw::TokensForAnybody =>
            {
                return Ok(Fenced::Taken);
            }
            _ => {}
        }
        rows.token = match self.flaw {
            Flaw::TokensFall => at_least.max(1000 - (rows.token % 1000 + 1)),
            Flaw::TokensAreTooLow => rows.token + 1,
            _ => at_least.max(rows.token + 1),
        };
        Ok(Fenced::With(rows.token))
    }

    fn extensions(&self) -> Extensions {
        let all = Extensions::of(&[Extension::KeptKeys, Extension::Tokens]);
        if self.has_extensions { all } else { Extensions::NONE }
    }

    async fn release(&self, owned: &Owned, keep: Duration) -> Result<Released, StoreError> {
        self.runtimes.lock().unwrap().insert(runtime::Handle::current().id());
        let slow = matches!(*self.fault.lock().unwrap(), Fault::Slow(_));
        if !slow {
            self.fail().await?;
        }
        let mut rows = self.rows.lock().unwrap();
        let Some(entry) = self.live(&rows, &owned.key) else {
            return Ok(match self.flaw {
                Flaw::ReleaseTwice => Released::Freed { woken: 1 },
                _ => Released::Gone,
            });
        };
        let is_own = entry.owner.as_deref() == Some(&*owned.owner);
        if !is_own && self.flaw != Flaw::AnybodyReleases {
            return Ok(Released::Taken);
        }
        let keep = match self.flaw {
            Flaw::KeptForNoTime => Duration::ZERO,
            Flaw::KeptForEver if !keep.is_zero() => Duration::from_secs(3600),
            _ => keep,
        };
        if !keep.is_zero() {
            self.write(&mut rows, &owned.key, None, Instant::now() + keep);
        } else if self.flaw != Flaw::ReleaseIsForgotten {
            let key = self.key(&owned.key);
            rows.entries.remove(&key);
        }
        let woken = if rows.watched.contains(&owned.key) { rows.wake_ups.clone() } else { vec![] };
        drop(rows);
        for wake_ups in woken {
            wake_ups.released(&owned.key);
        }
        Ok(Released::Freed { woken: 1 })
    }

    async fn inspect(&self, key: &str) -> Result<Vec<StoredLease>, StoreError> {
        self.fail().await?;
        let entry = self.live(&self.rows.lock().unwrap(), key);
        Ok(entry.map(|entry| self.stored(key, entry)).into_iter().collect())
    }

    async fn scan(&self, scan: LeaseScan<'_>) -> Result<LeasePage, StoreError> {
        self.fail().await?;
        let rows = self.rows.lock().unwrap();
        let is_wanted = |key: &&String| {
            let is_behind = scan.from.is_none_or(|from| match self.flaw {
                Flaw::ScanRepeatsKeys => key.as_bytes() >= from,
                _ => key.as_bytes() > from,
            });
            is_behind && key.starts_with(scan.prefix)
        };
        let mut keys: Vec<&String> = rows.entries.keys().filter(is_wanted).collect();
        keys.sort_unstable();
        let limit = if self.flaw == Flaw::ScanIgnoresTheLimit { usize::MAX } else { scan.limit };
        let is_last = keys.len() <= limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| !is_last).map(|key| key.as_bytes().to_vec());
        if self.flaw == Flaw::ScanNeverEnds && scan.limit < 100 {
            return Ok(LeasePage::new(Vec::new(), Some(b"again".to_vec())));
        }
        if self.flaw == Flaw::ScanForgetsKeys && scan.from.is_some() {
            keys.truncate(1);
        }
        let live = keys.into_iter().filter_map(|key| Some((key, self.live(&rows, key)?)));
        let leases = live.map(|(key, entry)| self.stored(key, entry));
        Ok(LeasePage::new(leases.collect(), next))
    }

    async fn watch(&self, key: &str) -> Result<(), StoreError> {
        self.fail().await?;
        self.rows.lock().unwrap().watch_requests.push(key.to_owned());
        let fault = *self.fault.lock().unwrap();
        if matches!(fault, Fault::HangingWatch(hanging) if hanging == key) {
            std::future::pending::<()>().await;
        }
        if self.is_notifying {
            self.rows.lock().unwrap().watched.insert(key.to_owned());
        }
        Ok(())
    }

    async fn unwatch(&self, key: &str) {
        self.rows.lock().unwrap().watched.remove(key);
    }

    fn poll_interval(&self) -> Duration {
        if self.is_notifying { Duration::from_secs(60) } else { Duration::from_millis(20) }
    }
}

impl OpenStore for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        let runs_on = if self.runs_on_callers { RunsOn::Callers } else { RunsOn::Thread };
        Ok(AsyncBackend::open(self.name(), settings, runs_on, |_| Arc::new(self.clone()))?)
    }
}

mod table {
    use std::sync::LazyLock;

    use super::{Flaw, Table};

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(Flaw::None));

    lock_runtime::store_conformance!(TABLE.clone());
}

mod notifying_table {
    use std::sync::LazyLock;

    use super::Table;

    static TABLE: LazyLock<Table> = LazyLock::new(Table::notifying);

    lock_runtime::store_conformance!(TABLE.clone());
}

/// Whether a check finds nothing.
async fn passes(check: impl Future<Output = ()> + Send + 'static) -> bool {
    tokio::spawn(AssertUnwindSafe(check).0).await.is_ok()
}

macro_rules! finds {
    ($($test:ident: $flaw:ident by $check:ident($($store:ident),+);)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let table = Table::new(Flaw::$flaw);
                finds!(@run $check, table, $($store),+);
            }
        )*

        #[test]
        fn each_flaw_is_found() {
            let found: Vec<Flaw> = vec![$(Flaw::$flaw),*];
            let last = Flaw::DroppedRequestsNeverEnd as usize;
            assert!((1..=last).all(|flaw| found.iter().any(|found| *found as usize == flaw)));
        }
    };
    (@run $check:ident, $table:ident, one) => {
        let check = async move { conformance::$check(CheckedStore::new($table)).await };
        assert!(!passes(check).await);
    };
    (@run $check:ident, $table:ident, $one:ident, $two:ident) => {
        // Whether two clients meet depends on the machine.
        let mut attempts = 0..10;
        let client = || CheckedStore::new($table.clone());
        let finds = async || !passes(conformance::$check(client(), client())).await;
        while !finds().await {
            assert!(attempts.next().is_some(), "nothing was found");
        }
    };
}

finds! {
    taken_keys: GrantsTakenKeys by a_free_key_is_granted_to_one_owner(one, two);
    a_look_before_a_write: GrantsBetweenLookAndWrite by one_of_many_requests_is_granted(one, two);
    bodies_at_the_same_time: GrantsTakenKeys by calls_of_two_clients_exclude_each_other(one, two);
    a_refused_second_request: RefusesTheSecondRequest by the_owner_may_ask_again(one);
    a_second_request_that_shortens: SecondRequestShortens by the_second_request_shortens_nothing(one);
    endless_leases: LeasesNeverEnd by a_lease_ends(one);
    short_leases: LeasesEndEarly by a_lease_lasts_for_its_term(one);
    renewals_by_anybody: AnybodyRenews by only_the_owner_renews(one);
    renewals_of_the_dead: RenewalRevives by only_the_owner_renews(one);
    renewals_that_shorten: RenewalShortens by a_renewal_shortens_nothing(one);
    renewals_that_shorten_others: RenewalShortens by renewals_at_the_same_time_shorten_nothing(one);
    renewals_in_vain: RenewalDoesNothing by a_renewal_extends_a_lease(one);
    renewals_in_another_order: RenewalsAreMixedUp by a_batch_is_answered_one_by_one(one);
    missing_renewals: RenewalsAreMissing by a_batch_is_answered_one_by_one(one);
    releases_by_anybody: AnybodyReleases by only_the_owner_releases(one);
    forgotten_releases: ReleaseIsForgotten by a_released_key_is_free(one);
    second_releases: ReleaseTwice by a_released_key_is_free(one);
    keys_without_case: KeysIgnoreCase by a_key_is_any_text(one);
    trimmed_keys: KeysAreTrimmed by a_key_is_any_text(one);
    cut_keys: KeysAreCut by a_key_is_any_text(one);
    keys_that_are_kept_for_ever: KeptForEver by a_kept_key_is_free_afterwards(one);
    keys_that_are_not_kept: KeptForNoTime by a_kept_key_is_free_afterwards(one);
    tokens_that_fall: TokensFall by tokens_rise(one, two);
    low_tokens: TokensAreTooLow by tokens_rise(one, two);
    tokens_for_anybody: TokensForAnybody by tokens_are_for_the_owner_only(one);
    tokens_of_the_dead: TokensOfTheDead by tokens_are_for_the_owner_only(one);
    a_wrong_owner: TellsAnybody by a_lease_can_be_inspected(one);
    an_owner_of_a_kept_key: TellsOwnersOfKeptKeys by a_lease_can_be_inspected(one);
    a_scan_with_gaps: ScanForgetsKeys by a_scan_finds_all_keys_with_a_prefix(one);
    a_scan_that_repeats_keys: ScanRepeatsKeys by a_scan_finds_all_keys_with_a_prefix(one);
    an_endless_scan: ScanNeverEnds by a_scan_finds_all_keys_with_a_prefix(one);
    a_scan_without_limit: ScanIgnoresTheLimit by a_scan_finds_all_keys_with_a_prefix(one);
    requests_that_stay: DroppedRequestsNeverEnd by a_dropped_request_leaves_a_lease_at_most(one);
}

async fn client(table: &Table) -> LockClient {
    let builder = LockClient::builder().store(table.clone()).lease(LEASE);
    builder.connect().await.expect("it connects")
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32, time: Duration) -> Result<u32, LockError> {
    tokio::time::sleep(time).await;
    Ok(id)
}

#[tokio::test]
async fn an_annotated_function_is_renewed_and_leaves_nothing_behind() {
    let table = Table::new(Flaw::None);
    let client = client(&table).await;
    assert_eq!(with_client(client.clone(), pay(7, LEASE * 3)).await, Ok(7));
    client.shutdown().await.expect("released");
    assert!(table.rows.lock().unwrap().entries.is_empty());
}

#[tokio::test]
async fn a_busy_lock_tells_who_has_it() {
    let table = Table::new(Flaw::None);
    let (one, two) = (client(&table).await, client(&table).await);
    let _guard = one.lock("k").acquire().await.expect("free");
    for (client, is_own) in [(&one, true), (&two, false)] {
        let busy = tokio::spawn(client.lock("k").wait(LEASE / 20).acquire());
        match busy.await.expect("no panic") {
            Err(LockError::Busy { holder, .. }) => {
                let kind = if is_own { HolderKind::ThisProcess } else { HolderKind::Elsewhere };
                assert_eq!((holder.kind, holder.held_for.is_some()), (kind, !is_own), "{holder:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_needs_an_extension_that_a_store_lacks_sends_nothing() {
    let table = Table { has_extensions: false, ..Table::new(Flaw::None) };
    let client = client(&table).await;
    let option = |outcome: Result<(), LockError>| match outcome {
        Err(LockError::Config { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let guard = client.lock("k").acquire().await.expect("free");
    assert_eq!(option(guard.fencing_token().await.map(drop)), "store");
    guard.release().await.expect("held");
    let before = table.acquires.load(Ordering::Relaxed);
    let leadership = client.leadership("leader");
    assert_eq!(option(leadership.campaign().await.map(drop)), "store");
    assert_eq!(option(leadership.leader().await.map(drop)), "leader");
    let lock = client.lock("k");
    assert_eq!(option(lock.clone().min_hold(LEASE).acquire().await.map(drop)), "min_hold");
    assert_eq!(option(lock.clone().fair().acquire().await.map(drop)), "fair");
    assert_eq!(option(lock.acknowledged_by(1).acquire().await.map(drop)), "acknowledged_by");
    assert_eq!(option(client.read_write("k").read().acquire().await.map(drop)), "mode");
    assert_eq!(option(client.semaphore("k", 3).acquire().await.map(drop)), "permits");
    let periodic = client.periodic("k", LEASE * 100);
    assert_eq!(option(periodic.run(async {}).await.map(drop)), "every");
    assert_eq!(option(client.last_run("k").await.map(drop)), "every");
    assert_eq!(table.acquires.load(Ordering::Relaxed), before, "requests were sent");
}

#[tokio::test]
async fn a_leader_in_a_store_without_announcements_leads_without_a_name() {
    let table = Table::new(Flaw::None);
    let leader = client(&table).await.leadership("leader").named("first").campaign().await;
    let leader = leader.expect("nobody leads");
    assert!(matches!(
        leader.announce("second").await,
        Err(LockError::Config { option: "leader", .. })
    ));
    leader.resign().await.expect("it leads");
}

#[tokio::test]
async fn a_wake_up_comes_long_before_the_next_poll() {
    let table = Table::notifying();
    let (one, two) = (client(&table).await, client(&table).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(Duration::from_secs(50)).acquire());
    while table.rows.lock().unwrap().watched.is_empty() {
        tokio::time::sleep(LEASE / 100).await;
    }
    guard.release().await.expect("held");
    // Without wake-ups, the call would poll every 60 s.
    waiting.await.expect("no panic").expect("woken").release().await.expect("held");
}

#[tokio::test]
async fn a_watch_that_is_lost_while_others_begin_is_renewed() {
    let table = Table::notifying();
    let (one, two) = (client(&table).await, client(&table).await);
    let first = one.lock("a").acquire().await.expect("free");
    let _second = one.lock("b").acquire().await.expect("free");
    let _third = one.lock("c").acquire().await.expect("free");
    let wait = |key| tokio::spawn(two.lock(key).wait(Duration::from_secs(50)).acquire());
    let times_watched = async |key: &str, times| {
        while table.rows.lock().unwrap().watch_requests.iter().filter(|it| *it == key).count()
            < times
        {
            tokio::time::sleep(LEASE / 100).await;
        }
    };
    // While the first watch hangs, the other two keys are wanted, so that their watches begin together.
    table.set(Fault::HangingWatch("c"));
    let before = table.acquires.load(Ordering::Relaxed);
    let _third_waiting = wait("c");
    times_watched("c", 1).await;
    let (waiting, _second_waiting) = (wait("a"), wait("b"));
    while table.acquires.load(Ordering::Relaxed) < before + 3 {
        tokio::time::sleep(LEASE / 100).await;
    }
    table.set(Fault::HangingWatch("b"));
    times_watched("a", 1).await;
    times_watched("b", 1).await;
    let wake_ups = table.rows.lock().unwrap().wake_ups.clone();
    wake_ups.iter().for_each(WakeUps::interrupted);
    times_watched("a", 2).await;
    first.release().await.expect("held");
    waiting.await.expect("no panic").expect("woken").release().await.expect("held");
}

#[tokio::test]
async fn without_wake_ups_a_waiting_call_polls() {
    let table = Table::new(Flaw::None);
    let (one, two) = (client(&table).await, client(&table).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let before = table.acquires.load(Ordering::Relaxed);
    let waiting = tokio::spawn(two.lock("k").wait(Duration::from_secs(50)).acquire());
    while table.acquires.load(Ordering::Relaxed) < before + 3 {
        tokio::time::sleep(LEASE / 100).await;
    }
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("polled").release().await.expect("held");
}

#[tokio::test]
async fn a_hold_is_lost_if_its_store_stops_answering() {
    for fault in [Fault::Hang, Fault::Panic, Fault::Refuse] {
        let table = Table::new(Flaw::None);
        let client = client(&table).await;
        let guard = client.lock("k").acquire().await.expect("free");
        table.set(fault);
        assert_eq!(guard.lost().await, LostReason::RenewalFailed, "{fault:?}");
        table.set(Fault::None);
    }
}

#[tokio::test]
async fn errors_of_a_store_are_those_of_the_call() {
    let table = Table::new(Flaw::None);
    for (fault, words) in [
        (Fault::Refuse, "it is being repaired"),
        (Fault::Panic, "the store has panicked"),
        (Fault::Hang, "no answer in"),
    ] {
        // A third of the lease is the longest time for an answer, also on a machine that is stalled.
        let builder = LockClient::builder().store(table.clone()).lease(LEASE * 10);
        let client = builder.connect().await.expect("it connects");
        table.set(fault);
        match client.lock("k").wait(Duration::ZERO).acquire().await {
            Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains(words), "{cause}"),
            other => panic!("{fault:?}: {other:?}"),
        }
        match client.ready().await {
            Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains(words), "{cause}"),
            other => panic!("{fault:?}: {other:?}"),
        }
        table.set(Fault::None);
        client.ready().await.expect("it works again");
    }
    table.set(Fault::Panic);
    match LockClient::with_store(table.clone()).await.map(drop) {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("panicked"), "{cause}"),
        other => panic!("{other:?}"),
    }
}

/// The lock of a call that has given up is released after the request that acquires it, and not before.
#[tokio::test]
async fn the_request_of_a_call_that_has_given_up_leaves_no_lock() {
    let table = Table::new(Flaw::None);
    // Nothing ends by itself here.
    let builder = LockClient::builder().store(table.clone()).lease(Duration::from_secs(3600));
    let client = builder.connect().await.expect("it connects");
    table.set(Fault::Slow(LEASE / 2));
    let call = client.lock("k").wait(LEASE / 10).acquire();
    assert!(matches!(call.await, Err(LockError::Unavailable { .. })), "no answer in time");
    let cancelled = client.lock("other").acquire();
    assert!(tokio::time::timeout(LEASE / 10, cancelled).await.is_err());
    while table.acquires.load(Ordering::Relaxed) < 2 || !client.stats().is_idle() {
        tokio::time::sleep(LEASE / 100).await;
    }
    // The client waits for the releases. The requests have taken effect by then.
    client.shutdown().await.expect("released");
    tokio::time::sleep(LEASE).await;
    assert!(table.rows.lock().unwrap().entries.is_empty());
}

#[tokio::test]
async fn what_a_store_does_not_have_is_an_error_that_says_so() {
    let table = Table::new(Flaw::None);
    let client = client(&table).await;
    let config = |outcome: Result<(), LockError>| match outcome {
        Err(LockError::Config { option, problem, .. }) => {
            assert!(problem.contains("the store `table` has no"), "{problem}");
            option
        }
        other => panic!("{other:?}"),
    };
    let read = client.read_write("k").read().acquire().await.map(drop);
    assert_eq!(config(read), "mode");
    let permit = client.semaphore("k", 2).acquire().await.map(drop);
    assert_eq!(config(permit), "permits");
    let redisson = client.lock("k").wire_format(WireFormat::Redisson).acquire().await.map(drop);
    assert_eq!(config(redisson), "wire_format");
    let acknowledged = client.lock("k").acknowledged_by(Replicas::AtLeast(1)).acquire().await;
    assert_eq!(config(acknowledged.map(drop)), "acknowledged_by");
    let nested = client.lock("k").run(async {
        client.lock("k").acknowledged_by(Replicas::AtLeast(1)).acquire().await.map(drop)
    });
    assert_eq!(config(nested.await.expect("free")), "acknowledged_by");
    assert_eq!(config(client.last_run("k").await.map(drop)), "every");

    // Nothing would connect the store.
    let lazy = LockClient::builder().store(table.clone()).connect_lazy().map(drop);
    assert!(matches!(lazy, Err(LockError::Config { option: "store", .. })), "{lazy:?}");
    let both = LockClient::builder().url("memory:").store(table).connect().await.map(drop);
    assert!(matches!(both, Err(LockError::Config { option: "store", .. })), "{both:?}");
}

#[tokio::test]
async fn a_set_and_a_fencing_token_and_a_minimum_hold_work() {
    let table = Table::new(Flaw::None);
    let client = client(&table).await;
    let set = client.lock_all(["a", "b"]).acquire().await.expect("free");
    assert!(client.lock("b").try_acquire().await.is_ok());
    set.release().await.expect("held");
    let first = client.lock("a").acquire().await.expect("free");
    let token = first.fencing_token().await.expect("held");
    first.release().await.expect("held");
    let second = client.lock("a").min_hold(LEASE).acquire().await.expect("free");
    assert!(second.fencing_token().await.expect("held") > token);
    second.release().await.expect("held");
    let kept = client.lock("a").wait(Duration::ZERO).acquire().await.map(drop);
    assert!(matches!(kept, Err(LockError::Busy { .. })), "{kept:?}");
}

#[tokio::test]
async fn a_builder_shows_the_name_of_its_store_and_no_more() {
    let builder = LockClient::builder().store(Table::new(Flaw::None));
    let shown = format!("{builder:?}");
    assert!(shown.contains("store: Some(\"table\")") && shown.contains("url: None"), "{shown}");
}

#[test]
fn requests_run_on_the_first_runtime_of_callers_if_the_store_has_connections_there() {
    let new = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runs_on_callers in [false, true] {
        let table = Table { runs_on_callers, ..Table::new(Flaw::None) };
        let (first, second) = (new(), new());
        let ids = [&first, &second].map(|runtime| runtime.handle().id());
        let client = first.block_on(LockClient::with_store(table.clone())).unwrap();
        let used_by = |runtime: &runtime::Runtime| {
            runtime.block_on(client.lock("k").run(async {})).unwrap();
            let used: Vec<_> = table.runtimes.lock().unwrap().drain().collect();
            assert_eq!(used.len(), 1, "an acquire and its release");
            used[0]
        };
        let used = [used_by(&first), used_by(&second), used_by(&first)];
        let own = used[1];
        assert!(!ids.contains(&own), "the thread of the client");
        if runs_on_callers {
            assert_eq!(used, [ids[0], own, ids[0]]);
            drop(first);
            assert_eq!(used_by(&second), ids[1], "it takes the place of the first one");
        } else {
            assert_eq!(used, [own, own, own]);
        }
    }
}

#[cfg(feature = "admin")]
mod operators {
    use lock_runtime::Identity;
    use lock_runtime::admin::{Deletion, LockAdmin, LockState, StoredLayout};

    use super::*;

    /// The locks that a scan finds, by key.
    async fn scanned(admin: &LockAdmin, pattern: &str, others: bool) -> Vec<LockState> {
        let (mut scan, mut locks) = (admin.scan(pattern).pause(0).others(others), Vec::new());
        while let Some(step) = scan.next().await.expect("an answer") {
            locks.extend(step);
        }
        locks.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        locks
    }

    async fn keys(admin: &LockAdmin, pattern: &str, others: bool) -> Vec<String> {
        scanned(admin, pattern, others).await.into_iter().map(|lock| lock.key).collect()
    }

    #[tokio::test]
    async fn operators_read_the_locks_of_all_clients_and_delete_one() {
        let table = Table::new(Flaw::None);
        let named = |name: &str, namespace: &str| {
            let builder = LockClient::builder().store(table.clone()).lease(LEASE * 100);
            builder.namespace(namespace).identity(Identity::named(name))
        };
        let one = named("one", "shop").connect().await.expect("it connects");
        let two = named("two", "shop").connect().await.expect("it connects");
        let admin = LockAdmin::new(&one);
        assert_eq!(admin.inspect("order:1").await, Ok(None));
        let own = one.lock("order:1").acquire().await.expect("free");
        let other = two.lock("order:2").acquire().await.expect("free");
        let kept = two.lock("kept").min_hold(LEASE * 100).acquire().await.expect("free");
        kept.release().await.expect("held");
        let until = Instant::now() + LEASE * 100;
        let elsewhere = [("shop:foreign", "no token of this library"), ("shopping:1", "x")];
        for (key, owner) in elsewhere {
            table.write(&mut table.rows.lock().unwrap(), key, Some(owner), until);
        }

        let lock = admin.inspect("order:1").await.expect("an answer").expect("held");
        let holder = &lock.holders[0];
        assert_eq!(
            (&*lock.key, lock.layout, lock.queued),
            ("shop:order:1", StoredLayout::Token, 0)
        );
        assert_eq!(holder.client.name.as_deref(), Some("one"), "the client knows itself");
        assert!(holder.lease_left.is_some_and(|left| left <= LEASE * 100), "{holder:?}");
        assert!(holder.held_for.is_some_and(|time| time < LEASE * 10), "{holder:?}");
        let lock = admin.inspect("order:2").await.expect("an answer").expect("held");
        let stuck = &lock.holders[0];
        assert!(stuck.client.id.is_some() && stuck.client.id != holder.client.id, "{stuck:?}");
        let kept = admin.inspect("kept").await.expect("an answer").expect("taken");
        assert!(kept.holders[0].is_released, "{kept:?}");

        assert_eq!(keys(&admin, "*", false).await, ["shop:kept", "shop:order:1", "shop:order:2"]);
        assert_eq!(keys(&admin, "f*", true).await, ["shop:foreign"]);
        assert_eq!(keys(&admin, "order:[^1]", false).await, ["shop:order:2"]);
        let all = LockAdmin::new(&named("all", "").connect().await.expect("it connects"));
        assert_eq!(keys(&all, "shopping*", true).await, ["shopping:1"]);

        assert_eq!(admin.delete("order:1", &stuck.token).await, Ok(Deletion::Changed));
        assert_eq!(admin.delete("order:2", &stuck.token).await, Ok(Deletion::Deleted));
        assert_eq!(admin.delete("order:2", &stuck.token).await, Ok(Deletion::Gone));
        let token = &kept.holders[0].token;
        let refused = admin.delete("kept", token).await;
        assert!(matches!(refused, Err(LockError::Config { option: "token", .. })), "{refused:?}");
        one.lock("order:2").run(async {}).await.expect("it was deleted");
        own.release().await.expect("held");
        let lost = other.release().await;
        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    }

    #[tokio::test]
    async fn a_scan_of_many_locks_has_several_steps() {
        const MANY: usize = 600;
        let table = Table::new(Flaw::None);
        let until = Instant::now() + LEASE * 100;
        let owner = "kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5";
        for number in 0..MANY {
            let key = format!("job:{number}");
            table.write(&mut table.rows.lock().unwrap(), &key, Some(owner), until);
        }
        let admin = LockAdmin::new(&client(&table).await);
        assert_eq!(keys(&admin, "job:*", false).await.len(), MANY);
        let (mut scan, mut steps) = (admin.scan("*"), 0);
        while scan.next().await.expect("an answer").is_some() {
            steps += 1;
        }
        assert_eq!(steps, 3, "of at most 250 locks");
        table.set(Fault::Refuse);
        let refused = admin.scan("*").next().await;
        assert!(matches!(refused, Err(LockError::Unavailable { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn clients_of_a_custom_store_cannot_be_asked() {
        let admin = LockAdmin::new(&client(&Table::new(Flaw::None)).await);
        assert!(!admin.can_ask());
        let refused = admin.clients().await.map(drop);
        assert!(matches!(refused, Err(LockError::Config { option: "url", .. })), "{refused:?}");
        assert!(LockAdmin::new(&LockClient::memory()).can_ask());
    }
}
