#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

use std::pin::Pin;

#[distributed_lock(key = "k", guard = guard)]
fn work(early: bool) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
    let prepared = async move { Ok(()) };
    if early { Box::pin(prepared) } else { Box::pin(async move { Ok(()) }) }
}

fn main() {}
