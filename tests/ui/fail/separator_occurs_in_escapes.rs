#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<a>0<b>")]
async fn work(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<a>%<b>")]
async fn other(a: u64, b: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
