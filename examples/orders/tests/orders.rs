//! Two order services on one Redis, driven over HTTP.

mod service;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lock_runtime::LockClient;
use lock_tests::RedisServer;
use serde_json::{Value, json};

use crate::service::Service;

const STOCK: u32 = 60;
const BUYERS: u64 = 8;
const ORDERS_EACH: u64 = 12;

#[test]
fn two_services_never_oversell() {
    let server = RedisServer::start();
    let services = [Service::start(&server.url()), Service::start(&server.url())];
    services[0].set_stock("pen", STOCK);
    let sold = AtomicU32::new(0);
    thread::scope(|scope| {
        for buyer in 0..BUYERS {
            let (services, sold) = (&services, &sold);
            scope.spawn(move || {
                for n in 0..ORDERS_EACH {
                    let order = buyer * ORDERS_EACH + n;
                    let service = &services[usize::from((buyer + n) % 2 == 1)];
                    let body = json!({ "item": "pen", "units": 1 });
                    match service.post(&format!("/orders/{order}/pay"), &body) {
                        200 => drop(sold.fetch_add(1, Ordering::SeqCst)),
                        409 => {}
                        other => panic!("unexpected status {other}"),
                    }
                }
            });
        }
    });
    assert_eq!(sold.into_inner(), STOCK, "of {} orders", BUYERS * ORDERS_EACH);
    assert_eq!(services[1].stock("pen"), 0);
}

/// The negative control of the test above: the data in Redis has no protection of its own.
#[test]
fn without_locks_the_same_data_is_oversold() {
    let server = RedisServer::start();
    server.tell(&["SET", "stock", &STOCK.to_string()]);
    let sold = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..BUYERS {
            scope.spawn(|| {
                let mut shelf = server.connection();
                for _ in 0..ORDERS_EACH {
                    let left: u32 = redis::cmd("GET").arg("stock").query(&mut shelf).expect("up");
                    if let Some(rest) = left.checked_sub(1) {
                        redis::cmd("SET").arg("stock").arg(rest).exec(&mut shelf).expect("up");
                        sold.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(sold.into_inner() > STOCK);
}

#[test]
fn transfers_in_both_directions_lose_nothing_and_do_not_deadlock() {
    let server = RedisServer::start();
    let services = [Service::start(&server.url()), Service::start(&server.url())];
    services[0].set_stock("left", 50);
    services[0].set_stock("right", 50);
    thread::scope(|scope| {
        for n in 0..6_usize {
            let service = &services[n % 2];
            scope.spawn(move || {
                let (from, to) = if n < 3 { ("left", "right") } else { ("right", "left") };
                for _ in 0..10 {
                    let body = json!({ "from": from, "to": to, "units": 1 });
                    assert_eq!(service.post("/transfer", &body), 200);
                }
            });
        }
    });
    assert_eq!((services[0].stock("left"), services[1].stock("right")), (50, 50));
}

#[test]
fn an_order_is_paid_once_and_cancelled_once() {
    let service = Service::start("memory:");
    service.set_stock("pen", 3);
    let buy = json!({ "item": "pen", "units": 2 });
    assert_eq!(service.post("/orders/1/pay", &buy), 200);
    assert_eq!(service.post("/orders/1/pay", &buy), 409);
    assert_eq!(service.post("/orders/2/pay", &buy), 409, "only one is left");
    assert_eq!(service.post("/orders/1/cancel", &Value::Null), 200);
    assert_eq!(service.post("/orders/1/cancel", &Value::Null), 409);
    assert_eq!(service.stock("pen"), 3);
}

#[test]
fn a_busy_order_is_a_conflict_and_a_store_that_is_down_is_unavailable() {
    let mut server = RedisServer::start();
    let service = Service::start(&server.url());
    service.set_stock("pen", 3);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = LockClient::builder().url(server.url()).namespace("shop");
    let client = runtime.block_on(client.connect()).expect("the server is up");
    let guard = runtime.block_on(client.lock("order:1").acquire()).expect("free");
    let buy = json!({ "item": "pen", "units": 1 });
    assert_eq!(service.post_for_retry("/orders/1/pay", &buy), (409, None));
    runtime.block_on(guard.release()).expect("held");
    assert_eq!(service.post_for_retry("/orders/1/pay", &buy), (200, None));
    server.kill();
    let unavailable = (503, Some("1".to_owned()));
    assert_eq!(service.post_for_retry("/orders/2/pay", &buy), unavailable);
}

#[test]
fn it_serves_its_measurements_and_its_readiness() {
    let mut server = RedisServer::start();
    let service = Service::start(&server.url());
    service.set_stock("pen", 3);
    assert_eq!(service.post("/orders/1/pay", &json!({ "item": "pen", "units": 1 })), 200);
    assert_eq!(service.post("/orders/1/cancel", &Value::Null), 200);
    assert_eq!(service.page("/ready").0, 200);
    let paid = r#"distributed_lock_acquisitions_total{namespace="shop",template="order:<order>",outcome="granted"} 2"#;
    let began = Instant::now();
    while !service.page("/metrics").1.contains(paid) {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", service.page("/metrics").1);
        thread::sleep(Duration::from_millis(50));
    }
    server.kill();
    assert_eq!(service.page("/ready").0, 503);
    assert_eq!(service.page("/metrics").0, 200);
}

#[cfg(unix)]
#[test]
fn it_finishes_what_it_has_begun_when_told_to_stop() {
    let server = RedisServer::start();
    let mut service = Service::start(&server.url());
    service.set_stock("pen", 3);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = LockClient::builder().url(server.url()).namespace("shop");
    let client = runtime.block_on(client.connect()).expect("the server is up");
    // The test holds the order's lock, so the request has to wait.
    let guard = runtime.block_on(client.lock("order:1").acquire()).expect("free");
    let pay = json!({ "item": "pen", "units": 1 });
    thread::scope(|scope| {
        let paying = scope.spawn(|| service.post("/orders/1/pay", &pay));
        while server.queued("shop:order:1") == 0 {
            thread::yield_now();
        }
        let pid = service.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().expect("`kill` runs");
        assert!(told.success());
        runtime.block_on(guard.release()).expect("held");
        assert_eq!(paying.join().expect("no panic"), 200);
    });
    assert!(service.wait().success());
    let keys: Vec<String> = server.command(&["KEYS", "shop:*"]);
    assert!(keys.is_empty(), "{keys:?}");
}
