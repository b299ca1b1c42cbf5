//! The annotated item: a function's signature, and its body as it was written.
//!
//! The body is not parsed, so that what is half-typed or wrong in it is reported by the compiler
//! itself, in its own words.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, FnArg, GenericArgument, Pat, PathArguments, PathSegment, ReturnType, Signature,
    Token, Type, TypeParamBound, Visibility,
};

use crate::tokens::refilled;

pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// `#![…]` at the beginning of the body.
    pub(crate) inner_attributes: Vec<Attribute>,
    /// With its braces.
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        let body: TokenTree = input.parse()?;
        match &body {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let (inner_attributes, rest) = split_inner.parse2(group.stream())?;
                let body = refilled(group, rest);
                Ok(Self { attributes, visibility, signature, inner_attributes, body })
            }
            other => Err(syn::Error::new(
                other.span(),
                "`#[distributed_lock]` needs a function with a body; put it on the implementation",
            )),
        }
    }
}

/// How a function makes its future.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `async fn`
    Async,
    /// `fn … -> Pin<Box<dyn Future…>>`, as `#[async_trait]` makes it.
    Boxed,
    /// `fn … -> impl Future…`
    Opaque,
}

impl Function {
    /// `None` if it makes none.
    pub(crate) fn kind(&self) -> Option<Kind> {
        if self.signature.asyncness.is_some() {
            return Some(Kind::Async);
        }
        match &self.signature.output {
            ReturnType::Type(_, output) => kind_of(output),
            ReturnType::Default => None,
        }
    }

    /// What the future resolves to, if it is written down.
    pub(crate) fn output(&self) -> Option<&Type> {
        match (&self.signature.output, self.kind()) {
            (ReturnType::Type(_, output), Some(Kind::Async)) => Some(output),
            (ReturnType::Type(_, output), _) => {
                bounds(output).and_then(future_output).or_else(|| alias_output(output))
            }
            (ReturnType::Default, _) => None,
        }
    }

    /// The names that the arguments bring into the body, `self` among them.
    pub(crate) fn arguments(&self) -> Vec<Ident> {
        self.signature.inputs.iter().flat_map(names).collect()
    }
}

/// The names that an argument brings into the body.
pub(crate) fn names(argument: &FnArg) -> Vec<Ident> {
    let mut names = Vec::new();
    match argument {
        FnArg::Receiver(receiver) => names.push(receiver.self_token.into()),
        FnArg::Typed(argument) => collect(&argument.pat, &mut names),
    }
    names
}

/// The `#[cfg]`s of an argument.
pub(crate) fn conditions(argument: &FnArg) -> impl Iterator<Item = &Attribute> {
    let attributes = match argument {
        FnArg::Receiver(receiver) => &receiver.attrs,
        FnArg::Typed(argument) => &argument.attrs,
    };
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"))
}

fn split_inner(input: ParseStream<'_>) -> syn::Result<(Vec<Attribute>, TokenStream)> {
    Ok((input.call(Attribute::parse_inner)?, input.parse()?))
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.attributes);
        self.visibility.to_tokens(tokens);
        self.signature.to_tokens(tokens);
        let (inner, rest) = (&self.inner_attributes, self.body.stream());
        refilled(&self.body, quote!(#(#inner)* #rest)).to_tokens(tokens);
    }
}

fn kind_of(output: &Type) -> Option<Kind> {
    match output {
        Type::ImplTrait(_) => bounds(output).and_then(future_output).map(|_| Kind::Opaque),
        Type::Path(_) => match last(output)?.ident.to_string().as_str() {
            "BoxFuture" | "LocalBoxFuture" => Some(Kind::Boxed),
            "Pin" => bounds(output).and_then(future_output).map(|_| Kind::Boxed),
            _ => None,
        },
        _ => None,
    }
}

/// The bounds of an `impl …`, or of a `Pin<Box<dyn …>>`.
fn bounds(output: &Type) -> Option<&Punctuated<TypeParamBound, Token![+]>> {
    match output {
        Type::ImplTrait(opaque) => Some(&opaque.bounds),
        Type::TraitObject(object) => Some(&object.bounds),
        Type::Path(_) => {
            let segment = last(output).filter(|it| it.ident == "Pin" || it.ident == "Box")?;
            arguments(&segment.arguments).find_map(|argument| match argument {
                GenericArgument::Type(inner) => bounds(inner),
                _ => None,
            })
        }
        _ => None,
    }
}

fn future_output(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Option<&Type> {
    bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return None };
        let segment = bound.path.segments.last().filter(|segment| segment.ident == "Future")?;
        arguments(&segment.arguments).find_map(|argument| match argument {
            GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
            _ => None,
        })
    })
}

/// The last argument of a `BoxFuture<'a, T>`.
fn alias_output(output: &Type) -> Option<&Type> {
    let mut types = arguments(&last(output)?.arguments).filter_map(|argument| match argument {
        GenericArgument::Type(output) => Some(output),
        _ => None,
    });
    types.next_back()
}

fn last(output: &Type) -> Option<&PathSegment> {
    match output {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn arguments(arguments: &PathArguments) -> impl DoubleEndedIterator<Item = &GenericArgument> {
    let arguments = match arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments.into_iter().flatten()
}

fn collect(pattern: &Pat, names: &mut Vec<Ident>) {
    match pattern {
        Pat::Ident(pattern) => {
            names.push(pattern.ident.clone());
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
