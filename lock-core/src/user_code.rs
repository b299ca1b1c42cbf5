//! Calls into user code: the wakers of callers, and the `tracing` subscriber.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `user_code` and catches its panic, which the panic hook has reported by then. A caller
/// that wakes several tasks calls this function for each task, so that one panic does not keep the
/// other tasks asleep.
pub fn contained(user_code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) {
        // The payload may itself panic when it is dropped.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped.
    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("as planned, again");
        }
    }

    #[test]
    fn a_panic_and_a_panicking_payload_are_contained() {
        contained(|| panic!("as planned"));
        contained(|| std::panic::panic_any(PanicsOnDrop));
    }
}
