//! The page in a real Chromium. `scripts/browser` installs it, and runs this.

mod browser;
mod hidden;
mod live;
mod looks;
mod pointer;
mod scene;
mod service;
