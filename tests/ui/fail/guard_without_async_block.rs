#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

use std::pin::Pin;

#[distributed_lock(key = "order:<id>", guard = guard)]
fn work(id: u64) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
    make(id)
}

fn make(id: u64) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
    Box::pin(async move { Ok(()) })
}

fn main() {}
