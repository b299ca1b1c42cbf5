//! The procedural macros of `lock-runtime`, which re-exports them. Depend on `lock-runtime`, not on
//! this crate.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod args;
mod check;
mod duration;
mod expand;
mod function;
mod key;
#[cfg(test)]
mod snapshots;
mod template;
mod tokens;

use proc_macro::TokenStream;

// The documentation is on the re-export in `lock-runtime`, because the examples need that crate.
#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::distributed_lock(args.into(), &item.into()).into()
}

// The documentation is on `lock_runtime::key!`, which passes the path of its crate to this macro.
#[allow(missing_docs)]
#[proc_macro]
pub fn key(input: TokenStream) -> TokenStream {
    key::key(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
