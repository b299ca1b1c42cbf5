#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<idd>", wait = "10", lease = "1ms", retries = 3)]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

// The function is still defined, so its callers compile.
async fn caller() {
    let _ = work(1).await;
}

fn main() {}
