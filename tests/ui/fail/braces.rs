#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:{order.id}")]
async fn other(order: Order) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:{}")]
async fn formatted(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:#id")]
async fn of_spring(id: u64) -> Result<(), LockError> {
    Ok(())
}

struct Order {
    id: u64,
}

fn main() {}
