//! Benchmarks; see the README beside this file.
