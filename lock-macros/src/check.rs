//! Which functions can be annotated.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::{Error, ReturnType, Type};

use crate::args::{Args, OnFailure};
use crate::function::Function;
use crate::tokens::is_ident;

/// Items that are no functions at all deserve better than "expected `fn`".
pub(crate) fn not_a_function(item: &TokenStream, error: Error) -> Error {
    let other = ["struct", "enum", "trait", "impl", "mod", "type", "static", "union"];
    let is_function = item.clone().into_iter().any(|token| is_ident(&token, &["fn"]));
    let kind = item.clone().into_iter().find(|token| is_ident(token, &other));
    match kind {
        Some(kind) if !is_function => Error::new(
            kind.span(),
            format!("`#[distributed_lock]` goes on an `async fn`, not on `{kind}`"),
        ),
        _ => error,
    }
}

/// A function that can wait for a lock.
pub(crate) fn check(function: &Function) -> Result<(), Error> {
    let signature = &function.signature;
    if let Some(constness) = &signature.constness {
        return Err(Error::new(constness.span(), "a `const fn` cannot wait for a lock"));
    }
    if let Some(abi) = &signature.abi {
        return Err(Error::new(abi.span(), "a foreign function cannot wait for a lock"));
    }
    if function.kind().is_none() {
        return Err(Error::new(
            signature.fn_token.span(),
            "`#[distributed_lock]` needs an `async fn`, because it waits for the lock; make this \
             `async fn`, or lock inside it with `LockClient::lock`. If another attribute below makes \
             it a plain function, such as `#[tokio::main]` or `#[tokio::test]`, put this one above it",
        ));
    }
    Ok(())
}

/// A function that returns nothing has no room for a lock error.
pub(crate) fn check_output(args: &Args, function: &Function) -> Result<(), Error> {
    if !returns_nothing(function) || !matches!(args.on_failure, OnFailure::Return) {
        return Ok(());
    }
    let span = function.output().map_or_else(|| function.signature.ident.span(), Spanned::span);
    Err(Error::new(
        span,
        "this function returns nothing, so a lock that could not be taken has nowhere to go; return \
         a `Result<(), E>` with `E: From<LockError>`, or say what to do: `on_busy = ()` skips, \
         `or_else = |error| …` gets every lock error",
    ))
}

pub(crate) fn returns_nothing(function: &Function) -> bool {
    match function.output() {
        None => matches!(function.signature.output, ReturnType::Default),
        Some(output) => matches!(output, Type::Tuple(tuple) if tuple.elems.is_empty()),
    }
}
