//! Checks whether a function can be annotated.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::{Attribute, Error, ReturnType, Type};

use crate::args::{self, Args, OnFailure};
use crate::function::Function;
use crate::tokens::is_ident;

/// Replaces the parser's "expected `fn`" if the item is not a function.
pub(crate) fn not_a_function(item: &TokenStream, error: Error) -> Error {
    let other = ["struct", "enum", "trait", "impl", "mod", "type", "static", "union"];
    let is_function = item.clone().into_iter().any(|token| is_ident(&token, &["fn"]));
    let kind = item.clone().into_iter().find(|token| is_ident(token, &other));
    match kind {
        Some(kind) if !is_function => Error::new(
            kind.span(),
            format!("`#[distributed_lock]` requires an `async fn`, found `{kind}`"),
        ),
        _ => error,
    }
}

/// Checks that the function can wait for a lock.
pub(crate) fn check(function: &Function) -> Result<(), Error> {
    let signature = &function.signature;
    if let Some(constness) = &signature.constness {
        return Err(Error::new(
            constness.span(),
            "a `const fn` cannot wait for a lock; use an `async fn`",
        ));
    }
    if let Some(abi) = &signature.abi {
        return Err(Error::new(
            abi.span(),
            "an `extern` function cannot wait for a lock; use an `async fn`",
        ));
    }
    if function.kind().is_none() {
        return Err(Error::new(
            signature.fn_token.span(),
            "`#[distributed_lock]` requires an `async fn`; make the function `async`, or call \
             `LockClient::lock` in its body. If another attribute makes the function synchronous, \
             such as `#[tokio::main]` or `#[tokio::test]`, place `#[distributed_lock]` above that \
             attribute",
        ));
    }
    Ok(())
}

/// Checks that the function can return a lock error or handles it.
pub(crate) fn check_output(args: &Args, function: &Function) -> Result<(), Error> {
    if !returns_nothing(function) || !matches!(args.on_failure, OnFailure::Return) {
        return Ok(());
    }
    let span = function.output().map_or_else(|| function.signature.ident.span(), Spanned::span);
    Err(Error::new(
        span,
        "this function has no return value, so it cannot return a lock error; return \
         `Result<(), E>` with `E: From<LockError>`, or add `on_busy = ()` to skip the body if the \
         lock is busy, or `or_else = |error| …` to handle every lock error",
    ))
}

/// Checks the order of the locks of several attributes on one function. The attributes expand from the
/// first to the last, so the lock of the last one is outermost, and is taken first. Only keys that are
/// known at compile time can be compared.
pub(crate) fn check_order(args: &Args, function: &Function) -> Result<(), Error> {
    let Some(own) = args.key.literals() else { return Ok(()) };
    for attribute in &function.attributes {
        let Some(other) = lock_of(attribute, function) else { continue };
        // During a migration to another wire format, both locks are acquired in this way.
        let is_comparable = [args, &other].iter().all(|lock| {
            lock.client.is_none() && !lock.lock_options.iter().any(|it| it.field == "wire_format")
        });
        let Some(first) = other.key.literals().filter(|_| is_comparable) else { continue };
        let (Some(greatest), Some(least)) = (first.iter().max(), own.iter().min()) else {
            continue;
        };
        if greatest >= least {
            let mut all = [own.clone(), first.clone()].concat();
            all.sort_unstable();
            all.dedup();
            let keys: Vec<String> = all.iter().map(|key| format!("{key:?}")).collect();
            let keys = keys.join(", ");
            let problem = if greatest == least {
                format!("the key {least:?} is locked twice; remove one of the attributes")
            } else {
                format!(
                    "the lock of this attribute is acquired first, and its key {greatest:?} does not \
                     sort before {least:?}; two functions that acquire them in opposite orders could \
                     deadlock until the `wait` of one of them ends. Lock them together: \
                     `#[distributed_lock(keys = [{keys}])]`"
                )
            };
            return Err(Error::new(attribute.span(), problem));
        }
    }
    Ok(())
}

/// The options of another lock of this function.
fn lock_of(attribute: &Attribute, function: &Function) -> Option<Args> {
    let name = attribute.path().segments.last()?;
    if name.ident != "distributed_lock" {
        return None;
    }
    let tokens = attribute.meta.require_list().ok()?.tokens.clone();
    // The other attribute reports its own mistakes.
    args::parse(tokens, &function.arguments()).ok()
}

pub(crate) fn returns_nothing(function: &Function) -> bool {
    match function.output() {
        None => matches!(function.signature.output, ReturnType::Default),
        Some(output) => matches!(output, Type::Tuple(tuple) if tuple.elems.is_empty()),
    }
}
