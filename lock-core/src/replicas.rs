//! The replicas that have to acknowledge a lock.

use crate::error::LockError;

/// The highest number of replicas that can be required.
const MOST: u32 = 1_000;

/// The replicas of a server that have to acknowledge each grant and each renewal of a lock, for
/// `Lock::acknowledged_by`.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, Replicas};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let url = "memory:";
/// let client = LockClient::builder().url(url).acknowledged_by(1).connect().await?;
/// let payment = client.lock("payment:42").acknowledged_by(Replicas::All);
/// payment.run(async { /* … */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replicas {
    /// At least this number of replicas, up to 1,000. With zero, locks need no acknowledgement.
    AtLeast(u32),
    /// All replicas that the server reports, and at least one. A replica that is added counts from
    /// the next acknowledgement on. A replica that is down or was removed counts until the client
    /// opens its connection for acknowledgements anew.
    All,
}

impl From<u32> for Replicas {
    fn from(count: u32) -> Self {
        Self::AtLeast(count)
    }
}

impl Replicas {
    /// The requirement, checked.
    #[doc(hidden)]
    pub fn required(self) -> Result<RequiredReplicas, LockError> {
        match self {
            Self::AtLeast(at_least) if at_least > MOST => Err(LockError::config(
                "acknowledged_by",
                format!("{at_least} replicas are more than {MOST}"),
            )),
            Self::AtLeast(at_least) => Ok(RequiredReplicas { at_least, all: false }),
            Self::All => Ok(RequiredReplicas { at_least: 1, all: true }),
        }
    }
}

/// The replicas that have to acknowledge a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequiredReplicas {
    pub at_least: u32,
    /// Whether all replicas have to acknowledge it.
    pub all: bool,
}

impl RequiredReplicas {
    /// No acknowledgement is required.
    pub const NONE: Self = Self { at_least: 0, all: false };

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The requirement that is met if and only if both are met.
    pub fn and(self, other: Self) -> Self {
        Self { at_least: self.at_least.max(other.at_least), all: self.all || other.all }
    }
}

/// As it is written in an option.
impl std::fmt::Display for RequiredReplicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { at_least: 0 | 1, all: true } => f.write_str("all of them"),
            Self { at_least, all: true } => write!(f, "all of them, and at least {at_least}"),
            Self { at_least, all: false } => write!(f, "{at_least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(replicas: impl Into<Replicas>) -> RequiredReplicas {
        replicas.into().required().expect("valid")
    }

    #[test]
    fn zero_replicas_are_no_requirement() {
        assert!(required(0).is_none());
        assert!(!required(1).is_none() && !required(Replicas::All).is_none());
    }

    #[test]
    fn two_requirements_are_met_together() {
        let (none, one, two) = (required(0), required(1), required(2));
        assert_eq!((none.and(one), two.and(one)), (one, two));
        let both = required(Replicas::All).and(two);
        assert_eq!(both, RequiredReplicas { at_least: 2, all: true });
        assert_eq!(both.to_string(), "all of them, and at least 2");
        assert_eq!(required(Replicas::All).and(one), required(Replicas::All));
    }

    #[test]
    fn too_many_replicas_are_an_error() {
        assert!(Replicas::AtLeast(MOST).required().is_ok());
        match Replicas::AtLeast(MOST + 1).required() {
            Err(LockError::Config { option: "acknowledged_by", problem }) => {
                assert!(problem.contains("1001"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}
