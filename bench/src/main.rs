//! Benchmarks; see the README beside this folder.

// Figures are floating-point numbers made of counts, and no count here comes near 2^52.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod figures;
mod program;
mod record;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    program::be(&words[2], &words[3])
}
