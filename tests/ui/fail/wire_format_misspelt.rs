#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", wire_format = "redison")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", wire_format = 1)]
async fn other(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
