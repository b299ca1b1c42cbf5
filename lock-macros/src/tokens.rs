//! Work on raw tokens: what is done to a body that is not parsed.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote;
use syn::Error;
use syn::spanned::Spanned;

pub(crate) fn is_ident(token: &TokenTree, names: &[&str]) -> bool {
    matches!(token, TokenTree::Ident(ident) if names.iter().any(|name| ident == name))
}

/// Whether an `impl Trait` occurs.
pub(crate) fn has_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_impl(group.stream()),
        token => is_ident(&token, &["impl"]),
    })
}

/// The same tokens, as if they stood at `span`.
pub(crate) fn respanned(tokens: &TokenStream, span: Span) -> TokenStream {
    let at_span = tokens.clone().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    at_span.collect()
}

/// A group's tokens with the span of another group around them.
pub(crate) fn with_span(tokens: TokenStream, span: Span) -> TokenStream {
    let spanned = tokens.into_iter().map(|mut token| {
        if let TokenTree::Group(group) = &mut token {
            group.set_span(span);
        }
        token
    });
    spanned.collect()
}

/// `#[async_trait]` binds each argument anew in its async block, `let id = id;`, which is reported as
/// unused if only the key uses it. Those statements, and no others, are exempted.
pub(crate) fn quiet_rebindings(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut quiet = TokenStream::new();
    for (at, token) in tokens.iter().enumerate() {
        if let [
            TokenTree::Ident(a),
            TokenTree::Ident(b),
            TokenTree::Punct(c),
            TokenTree::Ident(d),
            ..,
        ] = &tokens[at..]
            && (a == "let" && c.as_char() == '=' && b == d)
        {
            quiet.extend(quote!(#[allow(unused_variables)]));
        }
        quiet.extend([match token {
            TokenTree::Group(group) => refilled(group, quiet_rebindings(group.stream())),
            token => token.clone(),
        }]);
    }
    quiet
}

/// Puts something at the beginning of the async block that a function's body consists of.
pub(crate) fn into_async_block(
    body: TokenStream,
    addition: &TokenStream,
) -> Result<TokenStream, Error> {
    fn put(tokens: TokenStream, addition: &TokenStream, done: &mut bool) -> TokenStream {
        let mut in_async = false;
        let replaced = tokens.into_iter().map(|token| match token {
            TokenTree::Group(group) if !*done => {
                let inner = if in_async && group.delimiter() == Delimiter::Brace {
                    *done = true;
                    let inner = group.stream();
                    quote!(#addition #inner)
                } else {
                    put(group.stream(), addition, done)
                };
                in_async = false;
                refilled(&group, inner)
            }
            token => {
                in_async = is_ident(&token, &["async"]) || in_async && is_ident(&token, &["move"]);
                token
            }
        });
        replaced.collect()
    }
    let (span, mut done) = (body.span(), false);
    let replaced = put(body, addition, &mut done);
    if done {
        return Ok(replaced);
    }
    Err(Error::new(
        span,
        "`guard` needs an `async fn`, or a body of the form `Box::pin(async move { … })`",
    ))
}

/// The same group around other tokens.
fn refilled(group: &Group, inner: TokenStream) -> TokenTree {
    let mut refilled = Group::new(group.delimiter(), inner);
    refilled.set_span(group.span());
    TokenTree::Group(refilled)
}
