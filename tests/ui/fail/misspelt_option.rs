#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", waits = "5s")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(kye = "order:<id>")]
async fn other(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
