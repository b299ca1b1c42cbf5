//! Work on raw tokens: what is done to a body that is not parsed.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
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

/// Whether a name occurs.
pub(crate) fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Ident(ident) => ident == *name,
        _ => false,
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

/// `#[async_trait]` binds each argument anew in its async block, `let id = id;`, which is reported as
/// unused if only the key uses it. Such statements are exempted.
pub(crate) fn quiet_rebindings(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut quiet = TokenStream::new();
    for (at, token) in tokens.iter().enumerate() {
        let begins = match at.checked_sub(1).map(|before| &tokens[before]) {
            None => true,
            Some(TokenTree::Punct(punct)) => punct.as_char() == ';',
            Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
            Some(_) => false,
        };
        if begins && is_rebinding(&tokens[at..]) {
            quiet.extend(quote!(#[allow(unused_variables)]));
        }
        quiet.extend([match token {
            TokenTree::Group(group) => {
                TokenTree::Group(refilled(group, quiet_rebindings(group.stream())))
            }
            token => token.clone(),
        }]);
    }
    quiet
}

/// `let a = a;`
fn is_rebinding(tokens: &[TokenTree]) -> bool {
    matches!(
        tokens,
        [
            TokenTree::Ident(keyword),
            TokenTree::Ident(new),
            TokenTree::Punct(equals),
            TokenTree::Ident(old),
            TokenTree::Punct(end),
            ..,
        ] if keyword == "let" && equals.as_char() == '=' && new == old && end.as_char() == ';'
    )
}

/// Puts something at the beginning of the async block that a function's body ends in: `async {…}`, or
/// `Box::pin(async {…})`.
pub(crate) fn into_async_block(
    body: TokenStream,
    addition: &TokenStream,
) -> Result<TokenStream, Error> {
    let span = body.span();
    in_last_statement(body, addition).ok_or_else(|| {
        let problem =
            "`guard` needs an `async fn`, or a body that ends in `Box::pin(async move { … })`";
        Error::new(span, problem)
    })
}

/// The same in a block whose last statement is meant.
fn in_last_statement(tokens: TokenStream, addition: &TokenStream) -> Option<TokenStream> {
    let mut tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let Some(TokenTree::Group(last)) = tokens.pop() else { return None };
    let before = tokens.last();
    let is_async = before.is_some_and(|token| is_ident(token, &["async", "move"]));
    let inner = match last.delimiter() {
        Delimiter::Brace if is_async => {
            let inner = last.stream();
            quote!(#addition #inner)
        }
        // The function's own braces.
        Delimiter::Brace if tokens.is_empty() => in_last_statement(last.stream(), addition)?,
        Delimiter::Parenthesis if before.is_some_and(|token| is_ident(token, &["pin"])) => {
            in_last_statement(last.stream(), addition)?
        }
        _ => return None,
    };
    tokens.push(TokenTree::Group(refilled(&last, inner)));
    Some(tokens.into_iter().collect())
}

/// The same group around other tokens.
pub(crate) fn refilled(group: &Group, inner: TokenStream) -> Group {
    let mut refilled = Group::new(group.delimiter(), inner);
    refilled.set_span(group.span());
    refilled
}
