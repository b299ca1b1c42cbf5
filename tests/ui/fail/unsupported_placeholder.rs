#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id + 1>")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id.pow(2)>")]
async fn other(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<ids[0]>")]
async fn third(ids: [u8; 2]) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
