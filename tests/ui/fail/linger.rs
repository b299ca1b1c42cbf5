#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", linger = "2s")]
async fn too_long(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", linger = 20)]
async fn no_unit(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", linger = "20ms", lease = "10s")]
async fn fixed(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", linger = "20ms", min_hold = "10s")]
async fn kept(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", linger = "20ms", on_lost = "report")]
async fn reported(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
