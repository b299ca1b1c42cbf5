//! A value for each runtime.

use tokio::runtime::Handle;

use super::home::Home;
use crate::sync::{Mutex, lock};

/// A value for each runtime that uses it, such as a connection, which does not work without the runtime that serves it.
pub struct PerRuntime<T>(Mutex<Vec<(Home, T)>>);

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> PerRuntime<T> {
    /// The value of the current runtime, which is made with `make` if it is the first one there. Those of runtimes that have ended
    /// are dropped then.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn here(&self, make: impl FnOnce() -> T) -> T {
        let here = Handle::current();
        let mut values = lock(&self.0);
        let is_here = |home: &Home| home.runtime().id() == here.id() && home.is_alive();
        if let Some((_, known)) = values.iter().find(|(home, _)| is_here(home)) {
            return known.clone();
        }
        values.retain(|(home, _)| home.is_alive());
        let value = make();
        values.push((Home::new(here), value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_its_own_value_until_it_ends() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (values, mut made) = (PerRuntime::default(), 0);
        let mut here = |runtime: &tokio::runtime::Runtime| {
            let _entered = runtime.enter();
            values.here(|| {
                made += 1;
                made
            })
        };
        let (one, other) = (runtime(), runtime());
        assert_eq!([here(&one), here(&other), here(&one), here(&other)], [1, 2, 1, 2]);
        drop(one);
        let third = runtime();
        assert_eq!([here(&third), here(&other)], [3, 2]);
        assert_eq!(lock(&values.0).len(), 2, "the first runtime has ended");
    }
}
