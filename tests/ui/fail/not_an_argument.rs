#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<idd>")]
async fn work(id: u64, (a, b): (u8, u8)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn other() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<self.id>")]
async fn third(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
