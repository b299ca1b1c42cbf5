//! The annotated item: a function's signature, and its body as it was written.
//!
//! The body is not parsed, so that what is half-typed or wrong in it is reported by the compiler
//! itself, in its own words.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, Pat, Signature, Visibility};

pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// With its braces; or a `;` where there is no body.
    pub(crate) body: TokenTree,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        let body: TokenTree = input.parse()?;
        match &body {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                Ok(Self { attributes, visibility, signature, body })
            }
            other => Err(syn::Error::new(
                other.span(),
                "`#[distributed_lock]` needs a function with a body; put it on the implementation",
            )),
        }
    }
}

impl Function {
    /// The names that the arguments bring into the body, `self` among them.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut names = Vec::new();
        for argument in &self.signature.inputs {
            match argument {
                FnArg::Receiver(_) => names.push("self".to_owned()),
                FnArg::Typed(argument) => collect(&argument.pat, &mut names),
            }
        }
        names
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.attributes);
        self.visibility.to_tokens(tokens);
        self.signature.to_tokens(tokens);
        self.body.to_tokens(tokens);
    }
}

fn collect(pattern: &Pat, names: &mut Vec<String>) {
    match pattern {
        Pat::Ident(pattern) => {
            names.push(pattern.ident.to_string());
            if let Some((_, inner)) = &pattern.subpat {
                collect(inner, names);
            }
        }
        Pat::Reference(pattern) => collect(&pattern.pat, names),
        Pat::Paren(pattern) => collect(&pattern.pat, names),
        Pat::Type(pattern) => collect(&pattern.pat, names),
        Pat::Tuple(pattern) => pattern.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::TupleStruct(pattern) => pattern.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::Slice(pattern) => pattern.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::Struct(pattern) => {
            pattern.fields.iter().for_each(|field| collect(&field.pat, names));
        }
        _ => {}
    }
}
