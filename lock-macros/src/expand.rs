//! Expands an annotated function.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, ReturnType, Type};

use crate::args::{self, Args, Key, OnFailure, OnLostOption, Value};
use crate::check::{check, check_order, check_output, not_a_function, returns_nothing};
use crate::function::{Function, Kind, conditions, names};
use crate::template::{Segment, Template};
use crate::tokens::{
    allow_unused_rebindings, has_impl, mentions, prepend_to_async_block, refilled, respanned,
};

/// Returns the expansion, or the original item with the compile errors.
///
/// The original item defines the function, so that its callers do not cause further errors.
pub(crate) fn distributed_lock(args: TokenStream, item: &TokenStream) -> TokenStream {
    let function: Function = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => return rejected(item, not_a_function(item, error)),
    };
    let mut errors = check(&function).err();
    match args::parse(args, &function.arguments()) {
        Ok(args) => {
            // The return type matters only if the function can be annotated at all.
            errors = errors.or_else(|| check_output(&args, &function).err());
            errors = errors.or_else(|| check_order(&args, &function).err());
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
    let names = Locals::default();
    let Locals { call: call_name, body: body_name, slot, .. } = &names;

    let site = site(args, function, &runtime, &names);
    let call = call(args, &runtime, &names);
    let locked = locked(args, function, &runtime, &names);
    let kind = function.kind().unwrap_or(Kind::Async);
    let block = match kind {
        Kind::Async => {
            let guard = bind_guard(args, &names);
            let new = new_slot(args);
            let slot = args.guard.as_ref().map(|_| {
                quote! {
                    let #slot = #runtime::__private::GuardSlot::#new();
                    let #slot = &#slot;
                }
            });
            let returned = returned(&signature.output);
            let captured = captured(args, function);
            // Nested braces would trigger `unused_braces` in a one-line body.
            let statements = body.stream();
            let block = refilled(body, quote!(#captured #guard #returned #statements));
            quote! {
                #slot
                let #body_name = async move #block;
                #locked
            }
        }
        Kind::Boxed | Kind::Opaque => {
            // The body may return early, so a closure with the same return type creates the future.
            let output = match (&signature.output, kind) {
                (ReturnType::Type(_, output), Kind::Boxed) => Some(quote!(-> #output)),
                _ => None,
            };
            let body = allow_unused_rebindings(body.to_token_stream());
            let (slots, body) = match bind_guard(args, &names) {
                None => (None, body),
                Some(guard) => match prepend_to_async_block(body, &guard) {
                    Ok(body) => (Some(shared_slot(args, &runtime, &names)), body),
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

/// Moves the arguments whose names begin with an underscore into the body.
///
/// The purpose of such arguments is their destructors, which must run while the lock is held.
/// Arguments that `on_busy` or `or_else` uses stay outside.
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

/// Local variables of the expansion. Their hygiene prevents collisions with the user's names.
struct Locals {
    site: Ident,
    call: Ident,
    body: Ident,
    /// The slot from which the body gets its guard.
    slot: Ident,
    /// A clone of a shared slot, owned outside the body.
    outer: Ident,
    error: Ident,
}

impl Default for Locals {
    fn default() -> Self {
        let [site, call, body, slot, outer, error] =
            ["site", "call", "body", "slot", "outer", "error"].map(local);
        Self { site, call, body, slot, outer, error }
    }
}

fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Acquires the lock, runs the body and converts the outcome to the function's return value.
fn locked(args: &Args, function: &Function, runtime: &TokenStream, names: &Locals) -> TokenStream {
    let Locals { site, call, body, slot, error, .. } = names;
    let run = match (args.key.is_set(), args.when.is_some()) {
        (false, false) => quote!(run),
        (false, true) => quote!(run_when),
        (true, false) => quote!(run_all),
        (true, true) => quote!(run_all_when),
    };
    let slot = optional(args.guard.as_ref().map(|_| quote!(#slot)));
    let failed = failed(args, function, runtime, names);
    if args.is_periodic() {
        let (retry_failed, output) = (args.retry_failed, local("output"));
        let run = local("run");
        let stated = function.output().filter(|output| can_be_named(output));
        let stated = stated.map(|output| quote!(: &#output));
        // A type cannot be inferred from a body that never ends.
        let has_failed = match function.output() {
            Some(Type::Never(_)) => quote!(|_| false),
            _ => quote! {
                |#output #stated| {
                    #[allow(unused_imports)]
                    use #runtime::__private::Succeeds as _;
                    #runtime::__private::RunProbe(#output).lock_runtime_has_failed()
                }
            },
        };
        return quote! {
            let #body = ::core::pin::pin!(::core::option::Option::Some(#body));
            let #call = #runtime::__private::PeriodicCall {
                site: #site,
                call: ::core::convert::Into::into(#call),
                retry_failed: #retry_failed,
            };
            let #run = #runtime::__private::run_every(#call, #slot, #body, #has_failed);
            match #run.await {
                ::core::result::Result::Ok(#body) => #body,
                ::core::result::Result::Err(#error) => #failed,
            }
        };
    }
    quote! {
        let #body = ::core::pin::pin!(::core::option::Option::Some(#body));
        match #runtime::__private::#run(#site, #call, #slot, #body).await {
            ::core::result::Result::Ok(#body) => #body,
            ::core::result::Result::Err(#error) => #failed,
        }
    }
}

/// The function's return value if the lock is not acquired or is lost.
fn failed(args: &Args, function: &Function, runtime: &TokenStream, names: &Locals) -> TokenStream {
    let Locals { site, error, .. } = names;
    // With this span, the compiler points at a return type that cannot contain a lock error.
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

/// Binds the guard to its name in the body.
fn bind_guard(args: &Args, names: &Locals) -> Option<TokenStream> {
    let (guard, slot) = (args.guard.as_ref()?, &names.slot);
    Some(match args.when {
        None => quote!(let #guard = #slot.held().await;),
        Some(_) => quote!(let #guard = #slot.get();),
    })
}

/// The function that makes a slot for the guard.
fn new_slot(args: &Args) -> TokenStream {
    if args.key.is_set() { quote!(of_set) } else { quote!(new) }
}

/// A reference-counted slot, for a body that is created before the future that runs it.
fn shared_slot(args: &Args, runtime: &TokenStream, names: &Locals) -> TokenStream {
    let (Locals { slot, outer, .. }, new) = (names, new_slot(args));
    quote! {
        let #slot = ::std::sync::Arc::new(#runtime::__private::GuardSlot::#new());
        let #outer = ::std::sync::Arc::clone(&#slot);
    }
}

/// Declares the body's type ahead of the body, so that the compiler reports a type error at the `?`
/// or value that causes it. `impl Trait` is not allowed in a `let` and remains inferred.
fn returned(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, output) = output else { return TokenStream::new() };
    if !can_be_named(output) {
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

/// Whether a local variable can have this type.
fn can_be_named(output: &Type) -> bool {
    !has_impl(output.to_token_stream()) && !matches!(output, Type::Never(_))
}

fn site(args: &Args, function: &Function, runtime: &TokenStream, names: &Locals) -> TokenStream {
    let name = function.signature.ident.to_string();
    let template = match &args.key {
        Key::Template(Template { literal, .. }) => literal.value(),
        key => written(key),
    };
    let options = options(args, |value| constant(value, runtime));
    let on_lost = match args.on_lost {
        OnLostOption::Abort => quote!(Abort),
        OnLostOption::Continue => quote!(Continue),
        OnLostOption::Report => quote!(Report),
    };
    let site = &names.site;
    // The block limits the scope of `SITE`, because item names are not hygienic.
    quote! {
        let #site = {
            static SITE: #runtime::__private::LockSite = #runtime::__private::LockSite {
                path: ::core::concat!(::core::module_path!(), "::", #name),
                template: #template,
                options: #runtime::__private::LockOptions {
                    #options ..#runtime::__private::LockOptions::NONE
                },
                on_lost: #runtime::__private::OnLost::#on_lost,
                metrics: #runtime::__private::SiteCache::new(),
            };
            &SITE
        };
    }
}

/// The key as it stands in the attribute.
fn written(key: &Key) -> String {
    match key {
        Key::Template(Template { literal, .. }) => literal.to_token_stream().to_string(),
        Key::Expression(expression) | Key::SetExpression(expression) => {
            expression.to_token_stream().to_string()
        }
        Key::Set(keys) => {
            let keys: Vec<_> = keys.iter().map(written).collect();
            format!("[{}]", keys.join(", "))
        }
    }
}

/// The fields of `LockOptions` for which `value` returns an expression.
fn options(args: &Args, value: impl Fn(&Value) -> Option<TokenStream>) -> TokenStream {
    let fields = args.lock_options.iter().filter_map(|option| {
        let (field, value) = (&option.field, optional(Some(value(&option.value)?)));
        Some(quote!(#field: #value,))
    });
    fields.collect()
}

/// The expression for a value that is known at compile time.
fn constant(value: &Value, runtime: &TokenStream) -> Option<TokenStream> {
    match value {
        Value::Duration(value) => Some(duration(*value)),
        Value::Wait(wait) => {
            let wait = duration(*wait);
            Some(quote!(#runtime::Wait::For(#wait)))
        }
        Value::WaitForever => Some(quote!(#runtime::Wait::Forever)),
        Value::Variant(kind, variant) => {
            let kind = Ident::new(kind, variant.span());
            Some(quote!(#runtime::#kind::#variant))
        }
        Value::Replicas(count) => Some(quote!(#runtime::Replicas::AtLeast(#count))),
        Value::AllReplicas => Some(quote!(#runtime::Replicas::All)),
        Value::Permits(count, limit) => Some(quote!(#runtime::Permits::new(#count, #limit))),
        Value::Flag(flag) => Some(quote!(#flag)),
        Value::WaitExpression(_)
        | Value::ReplicasExpression(_)
        | Value::PermitsExpression(_)
        | Value::Expression(_) => None,
    }
}

/// The expression for a value that is computed at each call.
fn computed(value: &Value, runtime: &TokenStream) -> Option<TokenStream> {
    match value {
        Value::WaitExpression(wait) => Some(quote_spanned! {wait.span()=>
            ::core::convert::Into::<#runtime::Wait>::into(#wait)
        }),
        Value::ReplicasExpression(replicas) => Some(quote_spanned! {replicas.span()=>
            ::core::convert::Into::<#runtime::Replicas>::into(#replicas)
        }),
        Value::PermitsExpression(permits) => Some(quote_spanned! {permits.span()=>
            ::core::convert::Into::<#runtime::Permits>::into(#permits)
        }),
        Value::Expression(value) => Some(value.to_token_stream()),
        Value::Duration(_)
        | Value::Wait(_)
        | Value::WaitForever
        | Value::Variant(..)
        | Value::Replicas(_)
        | Value::AllReplicas
        | Value::Permits(..)
        | Value::Flag(_) => None,
    }
}

fn duration(duration: std::time::Duration) -> TokenStream {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    quote!(::core::time::Duration::from_millis(#milliseconds))
}

/// The expression for the key or the keys.
fn key(key_option: &Key, runtime: &TokenStream) -> TokenStream {
    match key_option {
        Key::Template(template) => expand_template(template, runtime),
        Key::Expression(expression) => quote_spanned! {expression.span()=>
            ::core::convert::Into::<#runtime::LockKey>::into(#expression)
        },
        Key::Set(keys) => {
            let keys = keys.iter().map(|one| key(one, runtime));
            quote!(#runtime::__private::SetKeys::new([#(#keys),*]))
        }
        Key::SetExpression(expression) => quote_spanned! {expression.span()=>
            #runtime::__private::SetKeys::new(#expression)
        },
    }
}

/// The `Call`, which is evaluated before the arguments move into the body.
fn call(args: &Args, runtime: &TokenStream, names: &Locals) -> TokenStream {
    let key = key(&args.key, runtime);
    let client = optional(args.client.as_ref().map(|client| {
        quote_spanned! {client.span()=>
            #runtime::__private::client(&#client)
        }
    }));
    let site = &names.site;
    let options = match options(args, |value| computed(value, runtime)) {
        none if none.is_empty() => quote!(#site.options),
        some => quote!(#runtime::__private::LockOptions { #some ..#site.options }),
    };
    let call = quote! {
        #runtime::__private::Call {
            key: #key,
            client: #client,
            options: #options,
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

/// The expression that builds a key from a template.
pub(crate) fn expand_template(template: &Template, runtime: &TokenStream) -> TokenStream {
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
