#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

struct Shop;

trait Orders {
    fn pay(&self, __arg1: (u64, u64)) -> std::pin::Pin<Box<dyn Future<Output = Result<(), LockError>>>>;
}

impl Orders for Shop {
    #[distributed_lock(key = "order:<id>")]
    fn pay(&self, __arg1: (u64, u64)) -> std::pin::Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
        Box::pin(async move { Ok(()) })
    }
}

fn main() {}
