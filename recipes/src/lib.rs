//! The recipes of `docs/recipes.md`, each in a file of its own. `recipes/tests` shows that they do what they say, and what
//! happens without them. Recipes that are not here are examples in `examples`.

#![forbid(unsafe_code)]

pub mod at_most;
pub mod blocking;
pub mod fenced;
pub mod job;
pub mod payments;
pub mod verified;

/// Compiles the examples of the README of the repository as doc tests. (`lock-runtime` does the same with its own.)
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct RepositoryReadme;

/// The same for the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
