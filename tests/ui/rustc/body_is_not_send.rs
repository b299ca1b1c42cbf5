#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

use std::rc::Rc;

#[distributed_lock(key = "order:<id>")]
async fn work(id: u64) -> Result<(), LockError> {
    let shared = Rc::new(id);
    std::future::ready(()).await;
    drop(shared);
    Ok(())
}

fn spawn(_: impl Future + Send) {}

fn spawns() {
    spawn(work(1));
}

fn main() {}
