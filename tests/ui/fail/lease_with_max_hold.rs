#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "5s", max_hold = "10s")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
