//! The installed client. There is one per process, so this test has a process of its own.

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[tokio::test]
async fn a_client_is_installed_once_and_serves_every_annotated_function() {
    assert_eq!(pay(1).await, Err(LockError::NotConfigured));
    let text = LockError::NotConfigured.to_string();
    assert!(text.contains("install()"), "the error names the remedy: {text}");
    assert!(matches!(lock_runtime::global(), Err(LockError::NotConfigured)));
    assert_eq!(with_client(LockClient::memory(), pay(2)).await, Ok(2));

    LockClient::memory().install().expect("no client is installed yet");
    assert_eq!(pay(3).await, Ok(3));
    assert_eq!(LockClient::memory().install(), Err(LockError::AlreadyInstalled));

    let global = lock_runtime::global().expect("installed");
    let _held = global.lock("order:4").acquire().await.expect("free");
    assert!(global.lock("order:4").try_acquire().await.expect("up").is_none());
    assert_eq!(with_client(LockClient::memory(), pay(4)).await, Ok(4), "the key of another client");
}
