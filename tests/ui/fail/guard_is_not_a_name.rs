#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", guard = "guard")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", guard = self.guard)]
async fn other(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
