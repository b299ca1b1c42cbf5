//! The option `keys`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = [])]
async fn empty() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "account:<from>")]
async fn text(from: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<from>", "account:<to>", "account:<from>", 7])]
async fn twice(from: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "account:<from>", keys = ["account:<to>"])]
async fn both(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a")]
#[distributed_lock(key = "b")]
async fn wrong_order() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["b", "d"])]
#[distributed_lock(key = "c")]
async fn overlap() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a")]
#[distributed_lock(key = "a")]
async fn the_same() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
