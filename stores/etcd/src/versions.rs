//! What the version of a member means.

use lock_core::store::store_error::StoreError;

/// Fails if a member is too old: 3.4 has the requests that this store needs.
pub(super) fn check_version(version: &str) -> Result<(), StoreError> {
    if numbers(version) >= [3, 4, 0] {
        return Ok(());
    }
    let problem = format!("the server is etcd {version}, and this store needs 3.4 or newer");
    Err(StoreError::Config { option: "url", problem })
}

/// Whether a leader that was suspended and replaced revokes leases that were renewed meanwhile, without making sure that it
/// still leads. (Later versions do so unless their clock has just ticked.)
pub(super) fn revokes_too_early(version: &str) -> bool {
    let version = numbers(version);
    version < [3, 4, 31] || ([3, 5, 0]..[3, 5, 13]).contains(&version)
}

/// The three numbers of a version such as `3.5.9` or `3.6.0-rc.1`. What is not a number counts as zero.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.');
    std::array::from_fn(|_| {
        let part = parts.next().unwrap_or_default();
        let digits = part.split(|letter: char| !letter.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_is_3_4() {
        for version in ["3.4.0", "3.5.9", "3.10.1", "4.0.0", "3.6.0-rc.1"] {
            check_version(version).expect(version);
        }
        for version in ["3.3.25", "2.3.8", "", "next"] {
            check_version(version).expect_err(version);
        }
    }

    #[test]
    fn leases_may_end_too_early_before_3_4_31_and_3_5_13() {
        for version in ["3.4.0", "3.4.23", "3.4.30", "3.5.0", "3.5.0-rc.1", "3.5.9", "3.5.12"] {
            assert!(revokes_too_early(version), "{version}");
        }
        for version in ["3.4.31", "3.4.31-custom", "3.5.13", "3.5.30", "3.6.0-rc.1", "4.0.0"] {
            assert!(!revokes_too_early(version), "{version}");
        }
    }
}
