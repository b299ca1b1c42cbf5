//! What an annotated function becomes.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, ReturnType, Type};

use crate::args::{self, Args, Key, Lease, Wait};
use crate::function::Function;
use crate::template::{Segment, Template};

/// The expansion, or the original item with what is wrong: the function stays callable, so that one
/// mistake is not reported all over the crate.
pub(crate) fn distributed_lock(args: TokenStream, item: &TokenStream) -> TokenStream {
    let function: Function = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => return rejected(item, not_a_function(item, error)),
    };
    let arguments = function.arguments();
    let misuse = check(&function).err();
    match (args::parse(args, &arguments), misuse) {
        (Ok(args), None) => expand(&args, &function),
        (Ok(_), Some(errors)) => rejected(&function, errors),
        (Err(rejection), None) => rejected(&function, rejection.errors),
        (Err(rejection), Some(mut errors)) => {
            errors.combine(rejection.errors);
            rejected(&function, errors)
        }
    }
}

fn rejected(item: &impl ToTokens, errors: Error) -> TokenStream {
    let errors = errors.into_compile_error();
    quote!(#item #errors)
}

/// Items that are no functions at all deserve better than "expected `fn`".
fn not_a_function(item: &TokenStream, error: Error) -> Error {
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

fn is_ident(token: &TokenTree, names: &[&str]) -> bool {
    matches!(token, TokenTree::Ident(ident) if names.iter().any(|name| ident == name))
}

fn check(function: &Function) -> Result<(), Error> {
    let signature = &function.signature;
    if let Some(constness) = &signature.constness {
        return Err(Error::new(constness.span(), "a `const fn` cannot wait for a lock"));
    }
    if let Some(abi) = &signature.abi {
        return Err(Error::new(abi.span(), "a foreign function cannot wait for a lock"));
    }
    if signature.asyncness.is_none() {
        return Err(Error::new(
            signature.fn_token.span(),
            "`#[distributed_lock]` needs an `async fn`, because it waits for the lock; make this \
             `async fn`, or lock inside it with `LockClient::lock`",
        ));
    }
    let is_unit = match &signature.output {
        ReturnType::Default => true,
        ReturnType::Type(_, output) => matches!(&**output, Type::Tuple(t) if t.elems.is_empty()),
    };
    if is_unit {
        let span = match &signature.output {
            ReturnType::Default => signature.ident.span(),
            ReturnType::Type(_, output) => output.span(),
        };
        return Err(Error::new(
            span,
            "this function returns nothing, so a lock that could not be taken has nowhere to go; \
             return a `Result<(), E>` with `E: From<LockError>`, such as `LockError` itself",
        ));
    }
    Ok(())
}

fn expand(args: &Args, function: &Function) -> TokenStream {
    let Function { attributes, visibility, signature, body } = function;
    let runtime =
        args.runtime.as_ref().map_or_else(|| quote!(::lock_runtime), |path| quote!(#path));
    let site = site(args, function, &runtime);
    let call = call(args, &runtime);
    let output = match &signature.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, output) => output.to_token_stream(),
    };
    let returned = returned(&signature.output);
    // Where the return type cannot carry a lock error, the compiler points at it.
    let error = local("error");
    let at_output = respanned(&runtime, output.span());
    let convert = quote_spanned!(output.span()=>
        #at_output::__private::FromLockError::from_lock_error(#error)
    );
    let (site_name, call_name) = (local("SITE"), local("call"));
    let body_name = local("body");
    quote! {
        #(#attributes)*
        #visibility #signature {
            #site
            let #call_name = #call;
            let #body_name = ::core::pin::pin!(::core::option::Option::Some(async move {
                #returned
                #body
            }));
            match #runtime::__private::run(&#site_name, #call_name, #body_name).await {
                ::core::result::Result::Ok(#body_name) => #body_name,
                ::core::result::Result::Err(#error) => #convert,
            }
        }
    }
}

/// The same tokens, as if they stood at `span`.
fn respanned(tokens: &TokenStream, span: Span) -> TokenStream {
    let at_span = tokens.clone().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    at_span.collect()
}

/// Names of our own never meet the user's.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Tells the compiler the body's type before it reads the body, so that `?` and a wrong value are
/// reported where they are. `impl Trait` cannot be written there, and is inferred.
fn returned(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, output) = output else { return TokenStream::new() };
    if has_impl(output.to_token_stream()) {
        return TokenStream::new();
    }
    let value = local("value");
    quote_spanned! {output.span()=>
        #[allow(unreachable_code, unused_variables, clippy::diverging_sub_expression,
            clippy::let_unit_value, clippy::needless_return, clippy::empty_loop)]
        if false {
            let #value: #output = loop {};
            return #value;
        }
    }
}

fn has_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_impl(group.stream()),
        token => is_ident(&token, &["impl"]),
    })
}

fn site(args: &Args, function: &Function, runtime: &TokenStream) -> TokenStream {
    let name = function.signature.ident.to_string();
    let template = match &args.key {
        Key::Template(Template { literal, .. }) => literal.value(),
        Key::Expression(expression) => expression.to_token_stream().to_string(),
    };
    let wait = match &args.wait {
        Some(Wait::For(wait)) => {
            let wait = duration(*wait);
            quote!(::core::option::Option::Some(#runtime::Wait::For(#wait)))
        }
        Some(Wait::Forever) => quote!(::core::option::Option::Some(#runtime::Wait::Forever)),
        Some(Wait::Expression(_)) | None => quote!(::core::option::Option::None),
    };
    let lease = match &args.lease {
        Some(Lease::For(lease)) => {
            let lease = duration(*lease);
            quote!(::core::option::Option::Some(#lease))
        }
        Some(Lease::Expression(_)) | None => quote!(::core::option::Option::None),
    };
    let site = local("SITE");
    quote! {
        static #site: #runtime::__private::LockSite = #runtime::__private::LockSite {
            path: ::core::concat!(::core::module_path!(), "::", #name),
            template: #template,
            wait: #wait,
            lease: #lease,
        };
    }
}

fn duration(duration: std::time::Duration) -> TokenStream {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    quote!(::core::time::Duration::from_millis(#milliseconds))
}

/// Everything that has to be known before the arguments move into the body.
fn call(args: &Args, runtime: &TokenStream) -> TokenStream {
    let key = match &args.key {
        Key::Template(template) => filled_in(template, runtime),
        Key::Expression(expression) => quote_spanned! {expression.span()=>
            ::core::result::Result::Ok(
                ::core::convert::Into::<::std::string::String>::into(#expression)
            )
        },
    };
    let client = optional(args.client.as_ref().map(|client| {
        quote_spanned! {client.span()=>
            ::core::clone::Clone::clone(
                ::core::borrow::Borrow::<#runtime::LockClient>::borrow(&#client)
            )
        }
    }));
    let wait = optional(match &args.wait {
        Some(Wait::Expression(wait)) => Some(wait.to_token_stream()),
        _ => None,
    });
    let lease = optional(match &args.lease {
        Some(Lease::Expression(lease)) => Some(lease.to_token_stream()),
        _ => None,
    });
    quote! {
        #runtime::__private::Call { key: #key, client: #client, wait: #wait, lease: #lease }
    }
}

fn optional(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

fn filled_in(template: &Template, runtime: &TokenStream) -> TokenStream {
    let key = local("key");
    let text = template.literal.value();
    let parts = template.segments.iter().map(|segment| match segment {
        Segment::Literal(text) => quote!(#key.literal(#text);),
        Segment::Placeholder { name, value, raw: true, .. } => {
            quote_spanned!(template.literal.span()=> #key.raw(#name, &#value);)
        }
        Segment::Placeholder { name, value, until, .. } => {
            let until = optional(until.map(|until| quote!(#until)));
            quote_spanned!(template.literal.span()=> #key.value(#name, &#value, #until);)
        }
    });
    quote! {{
        let mut #key = #runtime::__private::KeyWriter::new(#text);
        #(#parts)*
        #key.finish()
    }}
}
