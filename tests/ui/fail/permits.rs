use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "k", permits = 0)]
async fn none() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "3 of 2")]
async fn too_many() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "0 of 5")]
async fn zero() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "1001 of 2000")]
async fn very_many() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "1 of 0")]
async fn no_limit() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 4294967296)]
async fn too_large() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "1 of 4294967296")]
async fn too_large_a_limit() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "4294967296 of 10")]
async fn too_large_a_count() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "1 of 4294967295")]
async fn the_largest() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = "two")]
async fn text() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = -1)]
async fn negative() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 2, mode = "read")]
async fn reads() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], permits = 2)]
async fn several() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 2, fair = true)]
async fn fair() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 2, every = "1h")]
async fn periodic() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 2, wire_format = "redisson")]
async fn elsewhere() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", permits = 2, linger = "100ms")]
async fn lingers() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
