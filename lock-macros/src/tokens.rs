//! Operations on the tokens of unparsed bodies.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::quote;
use syn::Error;
use syn::spanned::Spanned;

pub(crate) fn is_ident(token: &TokenTree, names: &[&str]) -> bool {
    matches!(token, TokenTree::Ident(ident) if names.iter().any(|name| ident == name))
}

/// Whether the tokens contain an `impl Trait`.
pub(crate) fn has_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_impl(group.stream()),
        token => is_ident(&token, &["impl"]),
    })
}

/// Whether the tokens contain the identifier `name`.
pub(crate) fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Ident(ident) => ident == *name,
        _ => false,
    })
}

/// The same tokens with the span `span`.
pub(crate) fn respanned(tokens: &TokenStream, span: Span) -> TokenStream {
    let at_span = tokens.clone().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    at_span.collect()
}

/// Allows unused variables in statements of the form `let id = id;`.
///
/// `#[async_trait]` rebinds each argument with such a statement in its async block. The compiler
/// would report the new binding as unused if only the key uses the argument.
pub(crate) fn allow_unused_rebindings(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut allowed = TokenStream::new();
    for (at, token) in tokens.iter().enumerate() {
        let begins = match at.checked_sub(1).map(|before| &tokens[before]) {
            None => true,
            Some(TokenTree::Punct(punct)) => punct.as_char() == ';',
            Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
            Some(_) => false,
        };
        if begins && is_rebinding(&tokens[at..]) {
            allowed.extend(quote!(#[allow(unused_variables)]));
        }
        allowed.extend([match token {
            TokenTree::Group(group) => {
                TokenTree::Group(refilled(group, allow_unused_rebindings(group.stream())))
            }
            token => token.clone(),
        }]);
    }
    allowed
}

/// Whether the tokens start with a statement of the form `let a = a;`.
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

/// Inserts tokens at the start of the async block that ends a function's body: `async {…}` or
/// `Box::pin(async {…})`.
pub(crate) fn prepend_to_async_block(
    body: TokenStream,
    addition: &TokenStream,
) -> Result<TokenStream, Error> {
    let span = body.span();
    in_last_statement(body, addition).ok_or_else(|| {
        let problem = "`guard` requires an `async fn`, or a body that ends with `async move { … }` \
                       or `Box::pin(async move { … })`";
        Error::new(span, problem)
    })
}

/// Inserts tokens at the start of the async block that ends the last statement. Returns `None` if
/// there is no such block.
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
        // The braces of the function's body.
        Delimiter::Brace if tokens.is_empty() => in_last_statement(last.stream(), addition)?,
        Delimiter::Parenthesis if before.is_some_and(|token| is_ident(token, &["pin"])) => {
            in_last_statement(last.stream(), addition)?
        }
        _ => return None,
    };
    tokens.push(TokenTree::Group(refilled(&last, inner)));
    Some(tokens.into_iter().collect())
}

/// A group with the same delimiter and span around other tokens.
pub(crate) fn refilled(group: &Group, inner: TokenStream) -> Group {
    let mut refilled = Group::new(group.delimiter(), inner);
    refilled.set_span(group.span());
    refilled
}
