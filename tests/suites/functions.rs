//! The functions that the attribute supports, and its combination with other attributes.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};

use crate::support::LEASE;

/// Whether the key is held, as seen by a task that does not share the hold.
async fn is_held(client: &LockClient, key: &str) -> bool {
    let lock = client.lock(key);
    let tried = tokio::spawn(async move { lock.try_acquire().await.map(|guard| guard.is_none()) });
    tried.await.expect("no panic").expect("memory")
}

#[async_trait::async_trait]
trait Orders: Send + Sync {
    async fn pay(&self, id: u64, text: String) -> Result<bool, LockError>;

    #[distributed_lock(key = "default:<id>", client = self.locks())]
    async fn by_default(&self, id: u64) -> Result<bool, LockError> {
        Ok(is_held(self.locks(), "default:7").await)
    }

    fn locks(&self) -> &LockClient;
}

struct WebShop {
    locks: LockClient,
    name: String,
}

#[async_trait::async_trait]
impl Orders for WebShop {
    #[distributed_lock(key = "<self.name>:<id>", client = self.locks, wait = "0s", guard = guard)]
    async fn pay(&self, id: u64, text: String) -> Result<bool, LockError> {
        assert_eq!(guard.key(), "shop:7");
        tokio::task::yield_now().await;
        if text.is_empty() {
            return Ok(false);
        }
        Ok(is_held(&self.locks, "shop:7").await)
    }

    fn locks(&self) -> &LockClient {
        &self.locks
    }
}

fn shop() -> WebShop {
    WebShop { locks: LockClient::memory(), name: "shop".into() }
}

#[tokio::test]
async fn impls_and_default_methods_under_async_trait_can_be_annotated() {
    let orders: Box<dyn Orders> = Box::new(shop());
    assert_eq!(orders.pay(7, "x".into()).await, Ok(true));
    assert_eq!(orders.pay(7, String::new()).await, Ok(false), "an early return");
    assert!(!is_held(orders.locks(), "shop:7").await, "the key is free after the call");
    assert_eq!(orders.by_default(7).await, Ok(true));
    let _held = orders.locks().lock("shop:7").acquire().await.expect("free");
    assert!(matches!(orders.pay(7, "x".into()).await, Err(LockError::Busy { .. })));
}

trait Native {
    async fn native(&self, id: u64) -> Result<bool, LockError>;

    fn desugared(&self, id: u64) -> impl Future<Output = Result<bool, LockError>> + Send;
}

impl Native for WebShop {
    #[distributed_lock(key = "native:<id>", client = self.locks)]
    async fn native(&self, id: u64) -> Result<bool, LockError> {
        Ok(is_held(&self.locks, "native:7").await)
    }

    #[distributed_lock(key = "native:<id>", client = self.locks, guard = guard)]
    fn desugared(&self, id: u64) -> impl Future<Output = Result<bool, LockError>> + Send {
        async move { Ok(guard.is_held() && is_held(&self.locks, "native:7").await) }
    }
}

#[tokio::test]
async fn async_functions_in_traits_can_be_annotated() {
    assert_eq!(shop().native(7).await, Ok(true));
    assert_eq!(shop().desugared(7).await, Ok(true));
}

#[tokio::test]
async fn functions_that_return_boxed_futures_can_be_annotated() {
    type BoxedFuture<'a> = Pin<Box<dyn Future<Output = Result<bool, LockError>> + Send + 'a>>;

    #[distributed_lock(key = "boxed:<id>", client = client)]
    fn boxed(
        client: &LockClient,
        id: u64,
        early: bool,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LockError>> + Send + '_>> {
        if early {
            return Box::pin(async move { Ok(is_held(client, "boxed:7").await) });
        }
        Box::pin(async move { Ok(is_held(client, "boxed:7").await) })
    }
    let client = LockClient::memory();
    let boxed: Vec<BoxedFuture<'_>> = vec![boxed(&client, 7, true), boxed(&client, 7, false)];
    for held in boxed {
        assert_eq!(held.await, Ok(true));
    }
}

#[tokio::test]
async fn recursive_functions_with_boxed_futures_can_be_annotated() {
    #[distributed_lock(key = "depth", wait = "0s")]
    async fn down(depth: u32) -> Result<u32, LockError> {
        if depth == 0 { Ok(0) } else { Ok(1 + Box::pin(down(depth - 1)).await?) }
    }
    assert_eq!(with_client(LockClient::memory(), down(20)).await, Ok(20));
}

mod shadowed {
    use super::{Display, LockClient, LockError, distributed_lock, with_client};

    type Result<T> = std::result::Result<T, LockError>;

    #[distributed_lock(key = "a:<id>")]
    async fn alias(id: u64) -> Result<u64> {
        Ok(id)
    }

    #[distributed_lock(key = "b:<id>")]
    async fn with_anyhow(id: u64) -> anyhow::Result<impl Display> {
        anyhow::ensure!(id > 0, "no order {id}");
        Ok(id)
    }

    #[derive(Debug)]
    struct Wrapped(std::io::Error);

    impl From<LockError> for Wrapped {
        fn from(error: LockError) -> Self {
            Self(std::io::Error::other(error))
        }
    }

    impl From<std::io::Error> for Wrapped {
        fn from(error: std::io::Error) -> Self {
            Self(error)
        }
    }

    #[distributed_lock(key = "c:<id>")]
    async fn with_io(id: u64) -> std::result::Result<u64, Wrapped> {
        std::io::Read::read(&mut std::io::empty(), &mut [0])?;
        Ok(id)
    }

    #[tokio::test]
    async fn result_types_may_have_other_names() {
        with_client(LockClient::memory(), async {
            assert_eq!(alias(1).await, Ok(1));
            assert_eq!(with_anyhow(2).await.expect("valid").to_string(), "2");
            assert!(with_anyhow(0).await.is_err());
            assert_eq!(with_io(3).await.expect("valid"), 3);
        })
        .await;
        let error = with_io(3).await.expect_err("no client").0;
        assert!(error.to_string().contains("install"), "{error}");
        let error = with_anyhow(1).await.map(drop).expect_err("no client");
        assert_eq!(
            error.downcast::<LockError>().expect("the original error"),
            LockError::NotConfigured
        );
    }
}

#[tokio::test]
async fn arguments_are_moved_into_the_body() {
    #[distributed_lock(key = "<name>:<list.len()>", wait = wait)]
    async fn consume(
        name: String,
        list: Vec<String>,
        wait: std::time::Duration,
    ) -> Result<usize, LockError> {
        drop((name, wait));
        Ok(list.into_iter().map(|word| word.len()).sum())
    }
    let list = vec!["ab".to_owned(), "c".to_owned()];
    let length = with_client(LockClient::memory(), consume("n".into(), list, LEASE)).await;
    assert_eq!(length, Ok(3));
}

#[tokio::test]
async fn arguments_may_have_several_lifetimes() {
    #[distributed_lock(key = "<key>")]
    async fn longest<'a, 'b: 'a>(key: &'b str, text: &'a mut String) -> Result<&'a str, LockError> {
        if text.len() < key.len() {
            key.clone_into(text);
        }
        Ok(text)
    }
    let mut text = "ab".to_owned();
    let longest = with_client(LockClient::memory(), longest("abc", &mut text)).await;
    assert_eq!(longest, Ok("abc"));
}

mod beside_tracing {
    use std::cell::RefCell;

    use tracing::Span;

    use super::{LockClient, LockError, distributed_lock, with_client};

    thread_local! {
        /// The span in which each key was built. A key is built before its lock is acquired.
        static SPANS: RefCell<Vec<Option<&'static str>>> = const { RefCell::new(Vec::new()) };
    }

    fn recorded(key: &str) -> String {
        SPANS.with_borrow_mut(|spans| {
            spans.push(Span::current().metadata().map(tracing::Metadata::name));
        });
        key.to_owned()
    }

    #[tracing::instrument]
    #[distributed_lock(key = recorded("outside"))]
    async fn the_wait_is_outside() -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = recorded("inside"))]
    #[tracing::instrument]
    async fn the_wait_is_inside() -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test]
    async fn the_wait_belongs_to_the_span_of_the_lower_attribute() {
        let _log = tracing::subscriber::set_default(tracing_subscriber::registry());
        with_client(LockClient::memory(), async {
            the_wait_is_outside().await.expect("free");
            the_wait_is_inside().await.expect("free");
        })
        .await;
        assert_eq!(SPANS.take(), [None, Some("the_wait_is_inside")]);
    }

    #[tracing::instrument(skip(secret))]
    #[distributed_lock(key = "above:<id>")]
    async fn above(id: u64, secret: &str) -> Result<usize, LockError> {
        Ok(secret.len())
    }

    #[distributed_lock(key = "below:<id>")]
    #[tracing::instrument(skip(secret), err)]
    async fn below(id: u64, secret: &str) -> Result<usize, LockError> {
        Ok(secret.len())
    }

    #[tokio::test]
    async fn instrument_works_above_and_below_the_attribute() {
        with_client(LockClient::memory(), async {
            assert_eq!(above(1, "abc").await, Ok(3));
            assert_eq!(below(1, "abc").await, Ok(3));
        })
        .await;
    }
}

#[distributed_lock(key = "upper")]
#[distributed_lock(key = "lower")]
async fn with_two_locks() -> Result<(), LockError> {
    Ok(())
}

/// A migration from one key to another depends on this order.
#[tokio::test]
async fn of_two_attributes_the_lower_one_is_acquired_first() {
    let client = LockClient::memory();
    for (held, other, is_free) in [("lower", "upper", true), ("upper", "lower", false)] {
        let guard = client.lock(held).acquire().await.expect("free");
        let waiting = tokio::spawn(with_client(client.clone(), with_two_locks()));
        while client.stats().queued == 0 {
            tokio::task::yield_now().await;
        }
        let tried = client.lock(other).try_acquire().await.expect("up");
        assert_eq!(tried.is_some(), is_free, "{other} during the wait for {held}");
        drop((tried, guard));
        waiting.await.expect("no panic").expect("granted");
    }
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", or_else = |error| error.to_string())]
async fn handler(axum::extract::Path(id): axum::extract::Path<u64>) -> String {
    format!("paid {id}")
}

#[tokio::test]
async fn axum_handlers_can_be_annotated() {
    let _router: axum::Router = axum::Router::new().route("/{id}", axum::routing::post(handler));
    let paid = with_client(LockClient::memory(), handler(axum::extract::Path(7))).await;
    assert_eq!(paid, "paid 7");
}

/// The lock attribute comes first, because `#[tokio::test]` makes the function synchronous.
#[distributed_lock(key = "test", client = LockClient::memory(), or_else = |error| panic!("{error}"))]
#[tokio::test]
async fn tokio_tests_can_be_annotated() {
    tokio::task::yield_now().await;
}

#[cfg_attr(all(), distributed_lock(key = "cfg:<id>", client = client))]
/// Documented.
#[must_use = "really"]
#[allow(clippy::unused_async, reason = "that is what is tested")]
pub(crate) async fn conditional(client: &LockClient, id: u64) -> Result<bool, LockError> {
    Ok(is_held(client, "cfg:7").await)
}

#[tokio::test]
async fn the_attribute_works_under_cfg_attr() {
    assert_eq!(conditional(&LockClient::memory(), 7).await, Ok(true));
}

impl WebShop {
    #[distributed_lock(key = "arc:<self.name>", client = self.locks)]
    async fn shared(self: Arc<Self>) -> Result<bool, LockError> {
        Ok(is_held(&self.locks, "arc:shop").await)
    }

    #[distributed_lock(key = "pin:<self.name>", client = self.locks)]
    async fn pinned(self: Pin<&mut Self>) -> Result<bool, LockError> {
        Ok(is_held(&self.locks, "pin:shop").await)
    }
}

#[tokio::test]
async fn self_may_be_an_arc_or_pinned() {
    assert_eq!(Arc::new(shop()).shared().await, Ok(true));
    assert_eq!(Pin::new(&mut shop()).pinned().await, Ok(true));
}

#[tokio::test]
async fn handlers_may_use_arguments_that_the_body_does_not_take() {
    #[distributed_lock(key = "order:<id>", wait = "0s", or_else = |error| format!("{id}: {error}"))]
    async fn by_value(id: String) -> String {
        "done".to_owned()
    }
    #[distributed_lock(key = key)]
    async fn consumed(key: String) -> Result<(), LockError> {
        Ok(())
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        consumed("mine".into()).await.expect("free");
        assert_eq!(by_value("7".into()).await, "done");
        let _held = client.lock("order:7").acquire().await.expect("free");
        assert!(by_value("7".into()).await.starts_with("7: lock"));
    })
    .await;
}

#[tokio::test]
async fn functions_inside_functions_can_be_annotated() {
    #[distributed_lock(key = "k:<id>", client = client)]
    async fn inner(client: &LockClient, id: u64) -> Result<u64, LockError> {
        #![allow(clippy::needless_return)]
        return Ok(id);
    }
    #[distributed_lock(key = "k:<id>", client = client)]
    async fn conditional(
        client: &LockClient,
        #[cfg(any())] _gone: NoSuchType,
        id: u64,
    ) -> Result<u64, LockError> {
        Ok(id)
    }
    let client = LockClient::memory();
    assert_eq!(inner(&client, 1).await, Ok(1));
    assert_eq!(conditional(&client, 2).await, Ok(2));
}

#[tokio::test]
async fn functions_that_never_return_can_be_annotated() {
    #[distributed_lock(key = "k", lease = "50ms", or_else = |error| panic!("{error}"))]
    async fn serve() -> ! {
        loop {
            tokio::task::yield_now().await;
        }
    }
    let serving = tokio::spawn(with_client(LockClient::memory(), async { serve().await }));
    assert!(serving.await.expect_err("the lease has ended").is_panic());
}

#[tokio::test]
async fn boxed_functions_that_return_nothing_can_be_annotated() {
    type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

    #[distributed_lock(key = "k", wait = "0s", client = client, on_busy = ())]
    fn skips<'a>(
        client: &'a LockClient,
        done: &'a std::sync::atomic::AtomicU32,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        })
    }
    let (client, done) = (LockClient::memory(), std::sync::atomic::AtomicU32::new(0));
    skips(&client, &done).await;
    let _held = client.lock("k").acquire().await.expect("free");
    skips(&client, &done).await;
    assert_eq!(done.into_inner(), 1);
}
