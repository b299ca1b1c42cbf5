//! `key!("order:<id>")`: builds the same key as the attribute does from this template.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::quote;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Error, Expr, LitStr, Token};

use crate::expand::expand_template;
use crate::template::{self, Names, Segment, Template};

/// A template and its named values.
struct Input {
    /// The path of the `lock-runtime` crate.
    runtime: TokenStream,
    literal: LitStr,
    given: Vec<(Ident, Expr)>,
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut runtime = TokenStream::new();
        while !input.peek(Token![;]) {
            runtime.extend([input.parse::<TokenTree>()?]);
        }
        input.parse::<Token![;]>()?;
        if input.is_empty() {
            return Err(input.error("expected a template, such as `key!(\"order:<id>\")`"));
        }
        let literal: LitStr = input.parse()?;
        let mut given: Vec<(Ident, Expr)> = Vec::new();
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let name: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            if given.iter().any(|(other, _)| *other == name) {
                return Err(Error::new(name.span(), format!("duplicate value `{name}`")));
            }
            given.push((name, input.parse()?));
        }
        Ok(Self { runtime, literal, given })
    }
}

/// Expands `key!`.
pub(crate) fn key(input: TokenStream) -> Result<TokenStream, Error> {
    let Input { runtime, literal, given } = Input::parse.parse2(input)?;
    let (names, values): (Vec<Ident>, Vec<Expr>) = given.into_iter().unzip();
    let template = template::parse(literal, Names::Scope(&names))?;
    if let Some(unused) = names.iter().find(|name| !is_used(&template, name)) {
        let problem = format!("unused value `{unused}`; remove it or add `<{unused}>` to the key");
        return Err(Error::new(unused.span(), problem));
    }
    let key = expand_template(&template, &runtime);
    // A `match` keeps temporaries alive until the key is built.
    Ok(quote! {
        match (#(&#values,)*) {
            (#(#names,)*) => #key,
        }
    })
}

fn is_used(template: &Template, given: &Ident) -> bool {
    template.segments.iter().any(|segment| match segment {
        Segment::Placeholder { name, .. } => {
            name.split('.').next().is_some_and(|root| given == root.trim())
        }
        Segment::Literal(_) => false,
    })
}
