//! Where measurements are exported to.
//!
//! A destination is user code, which may block or panic.

use std::sync::Arc;

use super::totals::Totals;
use crate::user_code::contained;

/// Where measurements are exported to.
pub(super) trait Destination {
    /// Prepares an export. Returns whether somebody receives it.
    fn prepare(&mut self) -> bool;

    /// Exports all totals. `before` are those of the last export.
    fn export(&mut self, totals: &Totals, before: &Totals);
}

/// A destination, and what it has received.
pub(super) struct ExportTarget {
    destination: Box<dyn Destination>,
    exported: Arc<Totals>,
}

impl ExportTarget {
    pub(super) fn new(destination: impl Destination + 'static) -> Self {
        Self { destination: Box::new(destination), exported: Arc::default() }
    }

    /// `None` if nobody receives an export.
    pub(super) fn if_ready(&mut self) -> Option<&mut Self> {
        let mut is_ready = false;
        contained(|| is_ready = self.destination.prepare());
        is_ready.then_some(self)
    }

    /// Exports all totals. If that panics, the samples are not exported again.
    pub(super) fn export(&mut self, totals: &Arc<Totals>) {
        contained(|| self.destination.export(totals, &self.exported));
        self.exported = Arc::clone(totals);
    }
}
