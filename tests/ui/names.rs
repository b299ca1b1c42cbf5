//! Code with names that the expansion of the attribute also uses, or that differ from the usual ones. It has to compile.

use lock_runtime::{LockError, distributed_lock};

mod reexported {
    pub(crate) mod locks {
        pub(crate) use lock_runtime::*;
    }
}

#[distributed_lock(key = "order:<id>", crate = crate::reexported::locks)]
async fn work(id: u64) -> Result<()> {
    let _ = id;
    Ok(())
}

// Items whose names the expansion also uses, or that shadow names from the prelude.
#[allow(non_camel_case_types, dead_code)]
enum Option {
    Some,
    None,
}

#[allow(dead_code)]
type Result<T> = std::result::Result<T, LockError>;

#[distributed_lock(key = "order:<body>:<key>:<call>", wait = "1m 30s", lease = "10ms")]
async fn shadowed(body: u64, key: u64, call: u64) -> Result<u64> {
    let error = body + key + call;
    Ok(error)
}

/// A user's constant with the name of a static in the expansion.
const SITE: &str = "mine";

#[distributed_lock(key = SITE)]
async fn constants() -> Result<&'static str> {
    Ok(SITE)
}

macro_rules! through_a_macro {
    ($name:ident, $key:expr, $wait:literal) => {
        #[distributed_lock(key = $key, wait = $wait)]
        async fn $name(id: u64) -> Result<u64> {
            Ok(id)
        }
    };
}
through_a_macro!(by_macro, "order:<id>", "1s");

#[deny(warnings, clippy::pedantic)]
mod strict {
    use lock_runtime::{LockError, distributed_lock};

    /// Documented.
    #[distributed_lock(key = "order:<id>")]
    #[must_use]
    pub async fn work(id: u64, mut text: String) -> Result<String, LockError> {
        if id == 0 {
            return Ok(text);
        }
        text.push('x');
        Ok(text)
    }

    #[rustfmt::skip]
    #[distributed_lock(key = "order:<id>")]
    pub async fn one_line(id: u64) -> Result<u64, LockError> { Ok(id) }

    #[distributed_lock(key = "order:<id>", on_busy = ())]
    pub async fn nothing(id: u64, _permit: String, (_a, _): (u8, u8)) {}
}

/// The calls are not polled.
#[test]
fn names_do_not_collide() {
    let _ = (work(1), shadowed(1, 2, 3), strict::work(1, String::new()), by_macro(1), constants());
    let _ = (strict::one_line(1), strict::nothing(1, String::new(), (1, 2)));
}
