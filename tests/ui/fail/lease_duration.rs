#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", lease = "9ms")]
async fn work0(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "0s")]
async fn work1(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "8d")]
async fn work2(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "forever")]
async fn work3(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = 5)]
async fn work4(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
