//! The options `every` and `retry_failed`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", every = "10ms")]
async fn too_short() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", every = "8d", retry_failed = true)]
async fn too_long() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", every = 5)]
async fn number() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", every = "1h", retry_failed = "yes")]
async fn text() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", retry_failed = true)]
async fn no_period() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], every = "1h")]
async fn several() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", every = "1h", lease = "5s", wire_format = "redisson")]
async fn combined() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", every = "1h", fair = true)]
async fn fair() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
