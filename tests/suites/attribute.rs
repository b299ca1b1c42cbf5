//! The options of the attribute, and the functions that it supports.

use lock_tests::running_time;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};

use crate::support::LEASE;

/// The keys among `candidates` that are held.
async fn held(client: &LockClient, candidates: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    for key in candidates {
        let client = client.clone();
        let name = (*key).to_owned();
        // A task of its own, which does not share the enclosing hold.
        let free =
            tokio::spawn(async move { client.lock(name).try_acquire().await.map(|g| g.is_some()) });
        if !free.await.expect("no panic").expect("up") {
            held.push((*key).to_owned());
        }
    }
    held
}

#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error("locked")]
    Lock(#[from] LockError),
    #[error("declined")]
    Declined,
}

struct Order {
    id: u64,
    pair: (u8, Inner),
}

struct Inner {
    name: String,
}

impl Order {
    fn id(&self) -> u64 {
        self.id
    }
}

fn order() -> Order {
    Order { id: 7, pair: (1, Inner { name: "x y".into() }) }
}

#[tokio::test]
async fn placeholders_are_arguments_fields_indices_and_calls() {
    #[distributed_lock(
        key = "a:<n>:<order.id>:<order.id()>:<order.pair.0>:<order.pair.1.name>:<<>>"
    )]
    async fn all(client: &LockClient, n: i32, order: Order) -> Result<Vec<String>, LockError> {
        drop(order);
        Ok(held(client, &["a:-3:7:7:1:x%20y:<>"]).await)
    }
    let client = LockClient::memory();
    let held = with_client(client.clone(), all(&client, -3, order())).await.expect("free");
    assert_eq!(held.len(), 1);
}

#[tokio::test]
async fn braces_are_literal() {
    #[distributed_lock(key = "{user:<id>}:cart")]
    async fn cart(client: &LockClient, id: &str) -> Result<Vec<String>, LockError> {
        let _ = id;
        Ok(held(client, &["{user:a%7Db}:cart"]).await)
    }
    let client = LockClient::memory();
    assert_eq!(with_client(client.clone(), cart(&client, "a}b")).await.expect("free").len(), 1);
}

#[tokio::test]
async fn a_key_may_be_any_expression() {
    fn key_of(order: &Order) -> String {
        format!("made:{}", order.id)
    }
    #[distributed_lock(key = key_of(&order))]
    async fn by_call(client: &LockClient, order: Order) -> Result<Vec<String>, LockError> {
        drop(order);
        Ok(held(client, &["made:7"]).await)
    }
    const KEY: &str = "constant";
    #[distributed_lock(key = KEY)]
    async fn by_constant(client: &LockClient) -> Result<Vec<String>, LockError> {
        Ok(held(client, &["constant"]).await)
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        assert_eq!(by_call(&client, order()).await.expect("free").len(), 1);
        assert_eq!(by_constant(&client).await.expect("free").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn wait_and_lease_are_text_or_expressions() {
    #[distributed_lock(key = "k", wait = "0s")]
    async fn never_waits() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "k", wait = wait)]
    async fn waits(wait: Duration) -> Result<(), LockError> {
        let _ = wait;
        Ok(())
    }
    #[distributed_lock(key = "own", lease = lease)]
    async fn leased(lease: Duration) -> Result<(), LockError> {
        tokio::time::sleep(lease * 3).await;
        Ok(())
    }
    #[distributed_lock(key = "own", lease = "50ms", wait = "forever")]
    async fn leased_by_text() -> Result<(), LockError> {
        std::future::pending().await
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        let guard = client.lock("k").acquire().await.expect("free");
        let start = tokio::time::Instant::now();
        assert!(matches!(never_waits().await, Err(LockError::Busy { .. })));
        assert!(running_time(start) < LEASE);
        assert!(matches!(waits(LEASE).await, Err(LockError::Busy { .. })));
        assert!(start.elapsed() >= LEASE);
        drop(guard);
        assert!(matches!(leased(LEASE / 10).await, Err(LockError::Lost { .. })));
        assert!(matches!(leased_by_text().await, Err(LockError::Lost { .. })));
    })
    .await;
}

struct TenantService {
    locks: LockClient,
    shared: Arc<LockClient>,
    tenant: String,
}

impl TenantService {
    #[distributed_lock(key = "t:<self.tenant>", client = self.locks)]
    async fn by_reference(&self) -> Result<Vec<String>, LockError> {
        Ok(held(&self.locks, &["t:acme"]).await)
    }

    #[distributed_lock(key = "t:<self.tenant>", client = &self.locks)]
    async fn by_mutable_reference(&mut self, name: &str) -> Result<Vec<String>, LockError> {
        name.clone_into(&mut self.tenant);
        Ok(held(&self.locks, &["t:acme"]).await)
    }

    #[distributed_lock(key = "t:<self.tenant>", client = self.shared)]
    async fn by_value(self) -> Result<Vec<String>, LockError> {
        Ok(held(&self.shared, &["t:other"]).await)
    }

    #[distributed_lock(key = "t:<self.tenant>", client = self.locks.clone())]
    async fn by_arc(self: Arc<Self>) -> Result<Vec<String>, LockError> {
        Ok(held(&self.locks, &["t:acme"]).await)
    }
}

fn service() -> TenantService {
    let locks = LockClient::memory();
    TenantService { shared: Arc::new(locks.clone()), locks, tenant: "acme".into() }
}

#[tokio::test]
async fn methods_have_any_receiver_and_name_their_client() {
    let mut service = service();
    assert_eq!(service.by_reference().await.expect("free").len(), 1);
    assert_eq!(service.by_mutable_reference("other").await.expect("free").len(), 1);
    assert_eq!(service.by_value().await.expect("free").len(), 1);
    assert_eq!(Arc::new(self::service()).by_arc().await.expect("free").len(), 1);
}

#[tokio::test]
async fn functions_may_be_generic_and_take_patterns() {
    struct Path<T>(T);
    #[distributed_lock(key = "g:<id>", crate = ::lock_runtime)]
    async fn with_const<const N: usize>(id: u64) -> Result<u64, LockError> {
        Ok(id)
    }
    #[distributed_lock(key = "g:<id>-<b>")]
    async fn patterns<T: Display + Clone>(
        Path(id): Path<T>,
        (_a, mut b): (u8, u8),
        [first, ..]: [u8; 3],
        seen: impl Display,
    ) -> Result<String, LockError> {
        b += first;
        Ok(format!("{id} {b} {seen}"))
    }
    #[distributed_lock(key = "g:<text>")]
    async fn lifetimes<'a>(text: &'a str) -> Result<&'a str, LockError> {
        Ok(&text[1..])
    }
    let _ = with_const::<3>;
    with_client(LockClient::memory(), async {
        let text = patterns(Path("p"), (1, 2), [3, 4, 5], 'c').await.expect("free");
        assert_eq!(text, "p 5 c");
        assert_eq!(lifetimes("abc").await, Ok("bc"));
    })
    .await;
}

#[tokio::test]
async fn results_errors_and_early_returns_come_through() {
    #[distributed_lock(key = "k")]
    async fn pay(cents: i32) -> Result<i32, PayError> {
        if cents == 0 {
            return Ok(0);
        }
        let cents = u32::try_from(cents).map_err(|_| PayError::Declined)?;
        Ok(i32::try_from(cents).unwrap_or(i32::MAX) + 1)
    }
    #[distributed_lock(key = "nothing")]
    async fn nothing() -> Result<impl Display, PayError> {
        Ok(1)
    }
    with_client(LockClient::memory(), async {
        assert!(matches!(pay(0).await, Ok(0)));
        assert!(matches!(pay(1).await, Ok(2)));
        assert!(matches!(pay(-1).await, Err(PayError::Declined)));
        let _ = nothing;
    })
    .await;
    assert!(matches!(pay(1).await, Err(PayError::Lock(LockError::NotConfigured))));
}

#[tokio::test]
async fn bodies_need_not_be_send() {
    #[distributed_lock(key = "k")]
    async fn count(shared: Rc<u32>) -> Result<u32, LockError> {
        tokio::task::yield_now().await;
        Ok(*shared + 1)
    }
    let local = tokio::task::LocalSet::new();
    let counted = local.run_until(with_client(LockClient::memory(), count(Rc::new(1)))).await;
    assert_eq!(counted, Ok(2));
}

#[test]
fn futures_are_send_when_their_bodies_are() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    #[distributed_lock(key = "k:<id>")]
    async fn work(id: u64) -> Result<u64, LockError> {
        tokio::task::yield_now().await;
        Ok(id)
    }
    drop(is_send(work(1)));
    drop(is_send(service().by_value()));
    let client = LockClient::memory();
    drop(is_send(client.lock("k").acquire()));
    drop(is_send(client.lock("k").run(async {})));
    drop(is_send(client.shutdown()));
}

#[tokio::test]
async fn arguments_that_the_body_does_not_use_are_dropped_while_the_lock_is_held() {
    struct ArgumentDropCheck(LockClient, Arc<std::sync::atomic::AtomicU32>);
    impl Drop for ArgumentDropCheck {
        fn drop(&mut self) {
            // Checks from another thread, which does not share the hold. The memory store replies
            // at once.
            let (client, tokio) = (self.0.clone(), tokio::runtime::Handle::current());
            let check = std::thread::spawn(move || {
                let _tokio = tokio.enter();
                let mut tried = std::pin::pin!(client.lock("k").try_acquire());
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                matches!(tried.as_mut().poll(&mut cx), std::task::Poll::Ready(Ok(None)))
            });
            let is_held = check.join().expect("no panic");
            self.1.fetch_add(u32::from(is_held), std::sync::atomic::Ordering::SeqCst);
        }
    }
    #[distributed_lock(key = "k")]
    async fn work(
        _unused: ArgumentDropCheck,
        (_half, n): (ArgumentDropCheck, u32),
    ) -> Result<u32, LockError> {
        Ok(n)
    }
    let client = LockClient::memory();
    let held = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let check = || ArgumentDropCheck(client.clone(), Arc::clone(&held));
    with_client(client.clone(), work(check(), (check(), 1))).await.expect("free");
    assert_eq!(held.load(std::sync::atomic::Ordering::SeqCst), 2);
}

/// The future contains the body only once.
#[test]
fn the_lock_adds_little_to_the_size_of_a_future() {
    async fn plain(id: u64) -> Result<u8, LockError> {
        let big = [u8::try_from(id).unwrap_or_default(); 4096];
        tokio::task::yield_now().await;
        Ok(big[usize::try_from(id).unwrap_or_default()])
    }
    #[distributed_lock(key = "k:<id>")]
    async fn annotated(id: u64) -> Result<u8, LockError> {
        let big = [u8::try_from(id).unwrap_or_default(); 4096];
        tokio::task::yield_now().await;
        Ok(big[usize::try_from(id).unwrap_or_default()])
    }
    let (plain, annotated) = (size_of_val(&plain(1)), size_of_val(&annotated(1)));
    assert!(
        annotated <= plain + plain / 10,
        "{annotated} bytes with the attribute, {plain} bytes without"
    );
}
