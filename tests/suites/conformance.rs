//! The checks of all stores, with those whose tests have no target of their own.

use lock_runtime::conformance::CheckedStore;

mod memory {
    use super::CheckedStore;

    lock_runtime::store_conformance!(checked: CheckedStore::url("memory:conformance"));
}

mod redis {
    use lock_tests::RedisServer;

    use super::CheckedStore;

    lock_runtime::store_conformance!(
        checked: let server = RedisServer::start();
        CheckedStore::url(server.url())
    );
}

mod fresh_requests_of_redis {
    use lock_tests::RedisServer;

    use super::CheckedStore;

    lock_runtime::store_conformance!(
        checked: let server = RedisServer::start();
        CheckedStore::url(server.url()).fresh()
    );
}
