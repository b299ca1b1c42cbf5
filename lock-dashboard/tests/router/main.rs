//! The routes without a browser: headers, data, forbidden requests, streams, and processes that do not answer.

mod actions;
mod data;
mod logged;
mod page;
mod readme;
mod silence;
mod site;
mod streams;
