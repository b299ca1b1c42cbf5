use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "k", mode = "reed")]
async fn unknown() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], mode = "read")]
async fn several() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = "write", fair = true)]
async fn fair() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = "write", every = "1h")]
async fn periodic() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = "write", wire_format = "redisson")]
async fn elsewhere() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = "read", linger = "100ms")]
async fn lingers() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = "read", min_hold = "10s")]
async fn keeps() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
