//! Keys of other types.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ids)]
async fn no_iterator(ids: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [ids])]
async fn no_key(ids: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
