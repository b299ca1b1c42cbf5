//! What an annotated function becomes.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, ReturnType, Type};

use crate::args::{self, Args, Format, Key, OnFailure, OnLost, Wait};
use crate::check::{check, check_output, not_a_function, returns_nothing};
use crate::function::{Function, Kind, conditions, names};
use crate::template::{Segment, Template};
use crate::tokens::{has_impl, into_async_block, mentions, quiet_rebindings, refilled, respanned};

/// The expansion, or the original item with what is wrong: the function stays callable, so that one
/// mistake is not reported all over the crate.
pub(crate) fn distributed_lock(args: TokenStream, item: &TokenStream) -> TokenStream {
    let function: Function = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => return rejected(item, not_a_function(item, error)),
    };
    let mut errors = check(&function).err();
    match args::parse(args, &function.arguments()) {
        Ok(args) => {
            // What a function returns matters only if it is one that can be annotated at all.
            errors = errors.or_else(|| check_output(&args, &function).err());
            match errors {
                None => expand(&args, &function),
                Some(errors) => rejected(&function, errors),
            }
        }
        Err(more) => {
            let errors = errors.into_iter().chain([more]).reduce(|mut all, more| {
                all.combine(more);
                all
            });
            errors.map_or_else(|| function.to_token_stream(), |errors| rejected(&function, errors))
        }
    }
}

fn rejected(item: &impl ToTokens, errors: Error) -> TokenStream {
    let errors = errors.into_compile_error();
    quote!(#item #errors)
}

fn expand(args: &Args, function: &Function) -> TokenStream {
    let Function { attributes, visibility, signature, inner_attributes, body } = function;
    let runtime =
        args.runtime.as_ref().map_or_else(|| quote!(::lock_runtime), |path| quote!(#path));
    let names = Names::default();
    let Names { call: call_name, body: body_name, slot, .. } = &names;

    let site = site(args, function, &runtime, &names);
    let call = call(args, &runtime);
    let locked = locked(args, function, &runtime, &names);
    let kind = function.kind().unwrap_or(Kind::Async);
    let block = match kind {
        Kind::Async => {
            let guard = bind_guard(args, &names);
            let slot = args.guard.as_ref().map(|_| {
                quote! {
                    let #slot = #runtime::__private::GuardSlot::new();
                    let #slot = &#slot;
                }
            });
            let returned = returned(&signature.output);
            let captured = captured(args, function);
            // Without its braces, which would be reported as unnecessary in a body of one line.
            let statements = body.stream();
            let block = refilled(body, quote!(#captured #guard #returned #statements));
            quote! {
                #slot
                let #body_name = async move #block;
                #locked
            }
        }
        Kind::Boxed | Kind::Opaque => {
            // The function may return early; its future is made by what looks like it.
            let output = match (&signature.output, kind) {
                (ReturnType::Type(_, output), Kind::Boxed) => Some(quote!(-> #output)),
                _ => None,
            };
            let body = quiet_rebindings(body.to_token_stream());
            let (slots, body) = match bind_guard(args, &names) {
                None => (None, body),
                Some(guard) => match into_async_block(body, &guard) {
                    Ok(body) => (Some(shared_slot(&runtime, &names)), body),
                    Err(error) => return rejected(function, error),
                },
            };
            let future = quote! {
                #[allow(clippy::redundant_closure_call)]
                let #body_name = (move || #output #body)();
            };
            let outer = &names.outer;
            let take_slot = slots.as_ref().map(|_| quote!(let #slot = &*#outer;));
            match kind {
                Kind::Boxed => quote! {
                    #slots
                    #future
                    ::std::boxed::Box::pin(async move { #take_slot #locked })
                },
                _ => quote! { #slots #future async move { #take_slot #locked } },
            }
        }
    };
    quote! {
        #(#attributes)*
        #visibility #signature {
            #(#inner_attributes)*
            #site
            let #call_name = #call;
            #block
        }
    }
}

/// Moves the arguments that are kept for their destructors into the body, so that they are dropped
/// while the lock is held, as an async function drops them at its end. Those are the ones whose name
/// begins with an underscore. What the handlers use stays outside.
fn captured(args: &Args, function: &Function) -> TokenStream {
    let handlers = match &args.on_failure {
        OnFailure::Return => TokenStream::new(),
        OnFailure::OnBusy(handler) | OnFailure::OrElse(handler) => handler.to_token_stream(),
    };
    let mut captured = TokenStream::new();
    for argument in &function.signature.inputs {
        for name in names(argument) {
            let is_kept = name.unraw().to_string().starts_with('_');
            if is_kept && !mentions(handlers.clone(), &name) {
                let conditions = conditions(argument);
                captured.extend(quote! {
                    #(#conditions)*
                    #[allow(clippy::used_underscore_binding)]
                    let _ = &#name;
                });
            }
        }
    }
    captured
}

/// Names of our own never meet the user's.
struct Names {
    site: Ident,
    call: Ident,
    body: Ident,
    /// Where the body finds its guard: a reference.
    slot: Ident,
    /// The same, owned from outside the body.
    outer: Ident,
    error: Ident,
}

impl Default for Names {
    fn default() -> Self {
        let [site, call, body, slot, outer, error] =
            ["site", "call", "body", "slot", "outer", "error"].map(local);
        Self { site, call, body, slot, outer, error }
    }
}

fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Takes the lock, runs the body, and makes the function's value of what came of it.
fn locked(args: &Args, function: &Function, runtime: &TokenStream, names: &Names) -> TokenStream {
    let Names { site, call, body, slot, error, .. } = names;
    let run = if args.when.is_some() { quote!(run_when) } else { quote!(run) };
    let slot = optional(args.guard.as_ref().map(|_| quote!(#slot)));
    let failed = failed(args, function, runtime, names);
    quote! {
        let #body = ::core::pin::pin!(::core::option::Option::Some(#body));
        match #runtime::__private::#run(#site, #call, #slot, #body).await {
            ::core::result::Result::Ok(#body) => #body,
            ::core::result::Result::Err(#error) => #failed,
        }
    }
}

/// The function's value when its lock was not taken or not kept.
fn failed(args: &Args, function: &Function, runtime: &TokenStream, names: &Names) -> TokenStream {
    let Names { site, error, .. } = names;
    // Where the return type has no room for a lock error, the compiler points at it.
    let output = function.output().map_or_else(Span::call_site, Spanned::span);
    let at_output = respanned(runtime, output);
    let convert = quote_spanned! {output=>
        #at_output::__private::FromLockError::from_lock_error(#error)
    };
    match &args.on_failure {
        OnFailure::Return => convert,
        OnFailure::OrElse(handler) => {
            let at_handler = respanned(runtime, handler.span());
            quote_spanned!(handler.span()=> #at_handler::__private::or_else(#handler, #error))
        }
        OnFailure::OnBusy(value) if returns_nothing(function) => quote! {{
            #runtime::__private::swallow(#site, &#error);
            #value
        }},
        OnFailure::OnBusy(value) => quote! {
            match #error {
                #runtime::LockError::Busy { .. } => #value,
                #error => #convert,
            }
        },
    }
}

/// Gives the guard its name in the body.
fn bind_guard(args: &Args, names: &Names) -> Option<TokenStream> {
    let (guard, slot) = (args.guard.as_ref()?, &names.slot);
    Some(match args.when {
        None => quote!(let #guard = #slot.held().await;),
        Some(_) => quote!(let #guard = #slot.get();),
    })
}

/// A slot that a body can hold on to which is made before the frame that it will run in.
fn shared_slot(runtime: &TokenStream, names: &Names) -> TokenStream {
    let Names { slot, outer, .. } = names;
    quote! {
        let #slot = ::std::sync::Arc::new(#runtime::__private::GuardSlot::new());
        let #outer = ::std::sync::Arc::clone(&#slot);
    }
}

/// Tells the compiler the body's type before it reads the body, so that `?` and a wrong value are
/// reported where they are. `impl Trait` cannot be written there, and is inferred.
fn returned(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, output) = output else { return TokenStream::new() };
    if has_impl(output.to_token_stream()) || matches!(&**output, Type::Never(_)) {
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

fn site(args: &Args, function: &Function, runtime: &TokenStream, names: &Names) -> TokenStream {
    let name = function.signature.ident.to_string();
    let template = match &args.key {
        Key::Template(Template { literal, .. }) => literal.value(),
        Key::Expression(expression) => expression.to_token_stream().to_string(),
    };
    let wait = optional(match &args.wait {
        Some(Wait::For(wait)) => {
            let wait = duration(*wait);
            Some(quote!(#runtime::Wait::For(#wait)))
        }
        Some(Wait::Forever) => Some(quote!(#runtime::Wait::Forever)),
        Some(Wait::Expression(_)) | None => None,
    });
    let constant = |span: &Option<args::Span>| {
        optional(match span {
            Some(args::Span::For(span)) => Some(duration(*span)),
            Some(args::Span::Expression(_)) | None => None,
        })
    };
    let (lease, max_hold, min_hold) =
        (constant(&args.lease), constant(&args.max_hold), constant(&args.min_hold));
    let format = optional(match &args.format {
        Some(Format::Named(variant)) => Some(quote!(#runtime::WireFormat::#variant)),
        Some(Format::Expression(_)) | None => None,
    });
    let on_lost = match args.on_lost {
        OnLost::Abort => quote!(Abort),
        OnLost::Continue => quote!(Continue),
        OnLost::Report => quote!(Report),
    };
    let site = &names.site;
    // In a block of its own: the names of items are not hygienic.
    quote! {
        let #site = {
            static SITE: #runtime::__private::LockSite = #runtime::__private::LockSite {
                path: ::core::concat!(::core::module_path!(), "::", #name),
                template: #template,
                wait: #wait,
                lease: #lease,
                max_hold: #max_hold,
                min_hold: #min_hold,
                format: #format,
                on_lost: #runtime::__private::OnLost::#on_lost,
            };
            &SITE
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
            #runtime::__private::client(&#client)
        }
    }));
    let wait = optional(match &args.wait {
        Some(Wait::Expression(wait)) => Some(quote_spanned! {wait.span()=>
            ::core::convert::Into::<#runtime::Wait>::into(#wait)
        }),
        _ => None,
    });
    let given = |span: &Option<args::Span>| {
        optional(match span {
            Some(args::Span::Expression(span)) => Some(span.to_token_stream()),
            _ => None,
        })
    };
    let (lease, max_hold, min_hold) =
        (given(&args.lease), given(&args.max_hold), given(&args.min_hold));
    let format = optional(match &args.format {
        Some(Format::Expression(format)) => Some(format.to_token_stream()),
        _ => None,
    });
    let call = quote! {
        #runtime::__private::Call {
            key: #key,
            client: #client,
            wait: #wait,
            lease: #lease,
            max_hold: #max_hold,
            min_hold: #min_hold,
            format: #format,
        }
    };
    match &args.when {
        None => call,
        Some(when) => {
            let condition = local("when");
            quote! {{
                let #condition: bool = #when;
                if #condition {
                    ::core::option::Option::Some(#call)
                } else {
                    ::core::option::Option::None
                }
            }}
        }
    }
}

fn optional(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote_spanned!(value.span()=> ::core::option::Option::Some(#value)),
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
