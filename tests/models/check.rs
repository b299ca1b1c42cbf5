//! How models are checked: that all properties hold, or that the checker finds a violation.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// A model that the checker can explore.
pub(crate) trait Checked:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
}

impl<M> Checked for M where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq + Send + Sync,
        > + Send
        + Sync
        + 'static
{
}

/// Explores all states and asserts that all properties hold. Requires more than `floor` states, so
/// that a model in which few actions are possible fails.
pub(crate) fn holds(model: impl Checked, floor: usize) {
    let checker = model.checker().spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{states} states, {depth} steps deep");
    checker.assert_properties();
    // Without a counterexample, the checker must not stop early.
    assert!(checker.is_done());
    assert!(states > floor, "{states} states are too few, more than {floor} are expected");
}

/// Finds a short path to a state that violates `property`, and returns the state.
pub(crate) fn violates<M: Checked>(model: M, property: &'static str) -> M::State {
    let only = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(only).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{property} holds in all {} states", checker.unique_state_count())
    };
    println!("{property} is violated by {:?}", path.clone().into_actions());
    path.last_state().clone()
}
