//! Fairness between processes: the limit of hand-offs among the tasks of one process, and yielding
//! to other processes after that limit.

pub(crate) mod limit;
pub(crate) mod yielding;
