//! The layouts of locks in a store, and their modes.

use std::fmt;

use crate::lock_mode::LockMode;
use crate::lock_state::StoredLayout;
use crate::permits::Permits;
use crate::wire_format::WireFormat;

/// How a store writes locks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Exclusive locks in a format that other clients may share.
    Wire(WireFormat),
    /// Read-write locks.
    ReadWrite,
    /// Semaphores.
    Semaphore,
    /// Exclusive locks at one store of a quorum: those of `Token`, without a queue. A release wakes all
    /// who wait.
    Vote,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; WireFormat::ALL.len() + 3] = [
        Self::Wire(WireFormat::ALL[0]),
        Self::Wire(WireFormat::ALL[1]),
        Self::Wire(WireFormat::ALL[2]),
        Self::ReadWrite,
        Self::Semaphore,
        Self::Vote,
    ];

    /// Plain locks.
    pub const TOKEN: Self = Self::Wire(WireFormat::Token);

    /// The layout whose requests free such a lock.
    pub const fn of_stored(stored: StoredLayout) -> Self {
        match stored {
            // Also a string of another library.
            StoredLayout::Token | StoredLayout::OtherToken => Self::TOKEN,
            StoredLayout::Redisson => Self::Wire(WireFormat::Redisson),
            StoredLayout::Timestamp => Self::Wire(WireFormat::Timestamp),
            StoredLayout::ReadWrite => Self::ReadWrite,
            StoredLayout::Semaphore => Self::Semaphore,
        }
    }

    /// The position in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        match self {
            Self::Wire(format) => format.index(),
            Self::ReadWrite => WireFormat::ALL.len(),
            Self::Semaphore => WireFormat::ALL.len() + 1,
            Self::Vote => WireFormat::ALL.len() + 2,
        }
    }

    /// The kind of value that a key in this layout holds.
    pub fn value(self) -> &'static str {
        match self {
            Self::Wire(format) => format.value(),
            Self::ReadWrite => "read-write lock",
            Self::Semaphore => "semaphore",
            Self::Vote => WireFormat::Token.value(),
        }
    }
}

impl From<WireFormat> for Layout {
    fn from(format: WireFormat) -> Self {
        Self::Wire(format)
    }
}

/// The mode of a lock, which determines the owners that it excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Excludes all other owners.
    Exclusive,
    /// Excludes writers. In the layout [`ReadWrite`](Layout::ReadWrite).
    Read,
    /// Excludes readers and other writers. In the same layout.
    Write,
    /// Excludes owners that would have more than the limit together with the others. In the layout
    /// [`Semaphore`](Layout::Semaphore).
    Permits(Permits),
}

impl From<LockMode> for Mode {
    fn from(mode: LockMode) -> Self {
        match mode {
            LockMode::Read => Self::Read,
            LockMode::Write => Self::Write,
        }
    }
}

impl Mode {
    /// Whether the holder of a lock in this mode can give it to a call that wants this one.
    pub fn can_become(self, wanted: Self) -> bool {
        match (self, wanted) {
            (Self::Permits(_), _) | (_, Self::Permits(_)) => self == wanted,
            // Readers do not give their lock to writers, nor the other way round.
            _ => true,
        }
    }
}

/// All shares of a read-write lock, which a writer has. More than a semaphore can have.
pub const ALL_SHARES: u64 = 10_000_000_000;

/// A number of shares, and the capacity to which it is counted. Together, the holders of a lock have no more shares than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub count: u64,
    pub capacity: u64,
}

impl Mode {
    /// The shares that a holder in this mode has; `None` for exclusive locks.
    pub fn shares(self) -> Option<Shares> {
        let of_all = |count| Shares { count, capacity: ALL_SHARES };
        match self {
            Self::Exclusive => None,
            Self::Read => Some(of_all(1)),
            Self::Write => Some(of_all(ALL_SHARES)),
            Self::Permits(permits) => {
                Some(Shares { count: permits.count().into(), capacity: permits.limit().into() })
            }
        }
    }
}

impl Shares {
    /// The mode in which a holder has these shares; `None` if there is none.
    pub fn mode(self) -> Option<Mode> {
        match (self.count, self.capacity) {
            (1, ALL_SHARES) => Some(Mode::Read),
            (ALL_SHARES, ALL_SHARES) => Some(Mode::Write),
            (count, limit) => {
                let (count, limit) = (u32::try_from(count).ok()?, u32::try_from(limit).ok()?);
                (0 < count && count <= limit).then(|| Mode::Permits(Permits::new(count, limit)))
            }
        }
    }
}

/// The mode in a request; nothing for exclusive locks.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shares().map_or(Ok(()), |Shares { count, capacity }| write!(f, "s{count}/{capacity}/"))
    }
}
