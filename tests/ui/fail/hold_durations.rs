#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", max_hold = "forever")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", min_hold = "10 parsecs")]
async fn other(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", max_hold = "8d")]
async fn third(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
