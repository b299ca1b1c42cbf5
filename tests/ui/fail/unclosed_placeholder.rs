#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>>")]
async fn closed_twice(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
