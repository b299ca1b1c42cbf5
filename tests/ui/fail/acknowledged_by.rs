#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", acknowledged_by = "some")]
async fn text(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", acknowledged_by = -1)]
async fn negative(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", acknowledged_by = 1.5)]
async fn fraction(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", acknowledged_by = 1001)]
async fn many(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", acknowledged_by = id)]
async fn expression(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
