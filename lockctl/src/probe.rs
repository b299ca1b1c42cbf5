//! Names for keys that are only used for a moment.

use std::hash::{BuildHasher, RandomState};

/// A text that no other process uses. A process id would not be enough: processes in different containers may have the
/// same one.
pub(crate) fn unique() -> String {
    // Its keys are random.
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_one_process_differ_as_well() {
        assert_ne!(unique(), unique());
        assert_eq!(unique().len(), 16);
    }
}
