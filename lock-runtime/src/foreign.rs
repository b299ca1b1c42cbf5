//! Calls of code that is not ours: the wakers of callers, and whatever they run.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `foreign`, and outlives its panic, which the panic hook has reported. Callers that wake
/// several tasks wrap each call, so that none of them depends on another.
pub(crate) fn contained(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        // What was thrown may itself panic when it is dropped.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as planned, too");
        }
    }

    #[test]
    fn a_panic_goes_no_further_nor_does_what_was_thrown() {
        contained(|| panic!("as planned"));
        contained(|| std::panic::panic_any(Bomb));
    }
}
