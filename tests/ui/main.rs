//! What the attribute says to those who misuse it.
fn main() {}
