//! The `#[distributed_lock]` attribute of `lock-runtime`, which re-exports it. Depend on that crate.

mod args;
mod check;
mod duration;
mod expand;
mod function;
#[cfg(test)]
mod snapshots;
mod template;
mod tokens;

use proc_macro::TokenStream;

// Documented where it is re-exported, because its examples need the run time.
#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::distributed_lock(args.into(), &item.into()).into()
}
