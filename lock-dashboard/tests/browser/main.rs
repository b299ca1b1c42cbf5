//! The page in a real Chromium. `scripts/browser` installs it, and runs this.

mod browser;
mod live;
mod looks;
mod scene;
mod service;
