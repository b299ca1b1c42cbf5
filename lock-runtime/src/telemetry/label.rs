//! The names of measurements.

/// Where locks are acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SiteLabel {
    /// The template of the key.
    pub(crate) template: &'static str,
    /// The path of the annotated function.
    pub(crate) function: Option<&'static str>,
}
