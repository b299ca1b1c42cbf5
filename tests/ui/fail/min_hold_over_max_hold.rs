#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", min_hold = "10s", max_hold = "5s")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
