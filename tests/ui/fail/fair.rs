//! The option `fair`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", fair = "yes")]
async fn text() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fair)]
async fn no_value() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], fair = true)]
async fn several() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fair = true, linger = "20ms")]
async fn lingering() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fair = true, wire_format = "redisson")]
async fn foreign() -> Result<(), LockError> {
    Ok(())
}

// A `false` that is a value, and not a switch.
#[distributed_lock(key = "a", fair = false, on_busy = false, or_else = |_| true)]
async fn busy_or_else() -> bool {
    true
}

fn main() {}
