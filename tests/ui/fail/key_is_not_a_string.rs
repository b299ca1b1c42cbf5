#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = 42)]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
