//! The cost of the annotation itself, measured on the memory store without a network.
//!
//! `cargo bench -p lock-bench --bench annotation`

use std::sync::LazyLock;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

/// The number of calls per sample, large enough to make the cost of entering the runtime
/// negligible.
const CALLS: u64 = 1000;

static CLIENT: LazyLock<LockClient> = LazyLock::new(LockClient::memory);

fn main() {
    divan::main();
}

async fn plain(id: u64) -> Result<u64, LockError> {
    Ok(black_box(id))
}

#[distributed_lock(key = "order:<id>")]
async fn annotated(id: u64) -> Result<u64, LockError> {
    Ok(black_box(id))
}

#[distributed_lock(key = "order:<id>")]
async fn nested(id: u64) -> Result<u64, LockError> {
    let mut sum = 0;
    for _ in 0..CALLS {
        sum += annotated(id).await?;
    }
    Ok(sum)
}

fn measure(bencher: Bencher<'_, '_>, calls: impl AsyncFn() -> Result<u64, LockError>) {
    let runtime: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    bencher.counter(ItemsCount::new(CALLS)).bench_local(|| {
        runtime.block_on(with_client(CLIENT.clone(), calls())).expect("the memory store is free")
    });
}

async fn repeat(call: impl AsyncFn(u64) -> Result<u64, LockError>) -> Result<u64, LockError> {
    let mut sum = 0;
    for _ in 0..CALLS {
        sum += call(black_box(7)).await?;
    }
    Ok(sum)
}

#[divan::bench]
fn a_plain_call(bencher: Bencher<'_, '_>) {
    measure(bencher, || repeat(plain));
}

#[divan::bench]
fn b_tokio_mutex(bencher: Bencher<'_, '_>) {
    let mutex = Mutex::new(());
    measure(bencher, || {
        repeat(async |id| {
            let _guard = mutex.lock().await;
            plain(id).await
        })
    });
}

#[divan::bench]
fn c_reentrant_call(bencher: Bencher<'_, '_>) {
    measure(bencher, || nested(black_box(7)));
}

#[divan::bench]
fn d_uncontended_call(bencher: Bencher<'_, '_>) {
    measure(bencher, || repeat(annotated));
}
