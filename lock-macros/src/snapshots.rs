//! Snapshots of expansions, for code review. `UPDATE_EXPECT=1 cargo test -p lock-macros` updates
//! them.

use expect_test::{Expect, expect};
use quote::quote;

use crate::expand::distributed_lock;

fn check(args: proc_macro2::TokenStream, item: &proc_macro2::TokenStream, expected: &Expect) {
    let expansion = distributed_lock(args, item);
    let file = syn::parse2(expansion).expect("valid Rust");
    expected.assert_eq(&prettyplease::unparse(&file));
}

#[test]
fn a_method() {
    let item = quote! {
        /// Pays an order.
        pub async fn pay(&self, id: u64) -> Result<Receipt, PayError> {
            self.charge(id).await?;
            Ok(Receipt(id))
        }
    };
    check(
        quote!(key = "order:<id>:<self.shop>", wait = "10s", client = self.locks),
        &item,
        &expect![[r#"
            /// Pays an order.
            pub async fn pay(&self, id: u64) -> Result<Receipt, PayError> {
                let site = {
                    static SITE: ::lock_runtime::__private::LockSite = ::lock_runtime::__private::LockSite {
                        path: ::core::concat!(::core::module_path!(), "::", "pay"),
                        template: "order:<id>:<self.shop>",
                        options: ::lock_runtime::__private::LockOptions {
                            wait: ::core::option::Option::Some(
                                ::lock_runtime::Wait::For(
                                    ::core::time::Duration::from_millis(10000u64),
                                ),
                            ),
                            ..::lock_runtime::__private::LockOptions::NONE
                        },
                        on_lost: ::lock_runtime::__private::OnLost::Abort,
                        metrics: ::lock_runtime::__private::SiteCache::new(),
                    };
                    &SITE
                };
                let call = ::lock_runtime::__private::Call {
                    key: {
                        let mut key = ::lock_runtime::__private::KeyWriter::new(
                            "order:<id>:<self.shop>",
                        );
                        key.literal("order:");
                        key.value("id", &id, ::core::option::Option::Some(':'));
                        key.literal(":");
                        key.value("self.shop", &self.shop, ::core::option::Option::None);
                        key.finish()
                    },
                    client: ::core::option::Option::Some(
                        ::lock_runtime::__private::client(&self.locks),
                    ),
                    options: site.options,
                };
                let body = async move {
                    #[allow(
                        unreachable_code,
                        unused_variables,
                        clippy::diverging_sub_expression,
                        clippy::let_unit_value,
                        clippy::needless_return,
                        clippy::empty_loop
                    )]
                    if false {
                        let value: Result<Receipt, PayError> = loop {};
                        return value;
                    }
                    self.charge(id).await?;
                    Ok(Receipt(id))
                };
                let body = ::core::pin::pin!(::core::option::Option::Some(body));
                match ::lock_runtime::__private::run(site, call, ::core::option::Option::None, body)
                    .await
                {
                    ::core::result::Result::Ok(body) => body,
                    ::core::result::Result::Err(error) => {
                        ::lock_runtime::__private::FromLockError::from_lock_error(error)
                    }
                }
            }
        "#]],
    );
}

#[test]
fn most_options() {
    let item = quote! {
        async fn import(file: File) {
            guard.touch();
        }
    };
    check(
        quote!(
            key = key_of(&file),
            wait = patience,
            max_hold = "5m",
            min_hold = "10s",
            on_lost = "continue",
            on_busy = (),
            guard = guard,
            when = file.is_large(),
            acknowledged_by = "all",
            wire_format = "redisson",
            crate = locks
        ),
        &item,
        &expect![[r#"
            async fn import(file: File) {
                let site = {
                    static SITE: locks::__private::LockSite = locks::__private::LockSite {
                        path: ::core::concat!(::core::module_path!(), "::", "import"),
                        template: "key_of (& file)",
                        options: locks::__private::LockOptions {
                            max_hold: ::core::option::Option::Some(
                                ::core::time::Duration::from_millis(300000u64),
                            ),
                            min_hold: ::core::option::Option::Some(
                                ::core::time::Duration::from_millis(10000u64),
                            ),
                            acknowledged_by: ::core::option::Option::Some(locks::Replicas::All),
                            wire_format: ::core::option::Option::Some(locks::WireFormat::Redisson),
                            ..locks::__private::LockOptions::NONE
                        },
                        on_lost: locks::__private::OnLost::Continue,
                        metrics: locks::__private::SiteCache::new(),
                    };
                    &SITE
                };
                let call = {
                    let when: bool = file.is_large();
                    if when {
                        ::core::option::Option::Some(locks::__private::Call {
                            key: ::core::convert::Into::<locks::LockKey>::into(key_of(&file)),
                            client: ::core::option::Option::None,
                            options: locks::__private::LockOptions {
                                wait: ::core::option::Option::Some(
                                    ::core::convert::Into::<locks::Wait>::into(patience),
                                ),
                                ..site.options
                            },
                        })
                    } else {
                        ::core::option::Option::None
                    }
                };
                let slot = locks::__private::GuardSlot::new();
                let slot = &slot;
                let body = async move {
                    let guard = slot.get();
                    guard.touch();
                };
                let body = ::core::pin::pin!(::core::option::Option::Some(body));
                match locks::__private::run_when(
                        site,
                        call,
                        ::core::option::Option::Some(slot),
                        body,
                    )
                    .await
                {
                    ::core::result::Result::Ok(body) => body,
                    ::core::result::Result::Err(error) => {
                        locks::__private::swallow(site, &error);
                        ()
                    }
                }
            }
        "#]],
    );
}

#[test]
fn a_method_that_async_trait_has_expanded() {
    let item = quote! {
        fn pay<'life0, 'async_trait>(
            &'life0 self,
            id: u64,
        ) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = Result<(), E>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let __self = self;
                let id = id;
                __self.charge().await
            })
        }
    };
    check(
        quote!(key = "order:<id>", lease = "5s", guard = guard),
        &item,
        &expect![[r#"
            fn pay<'life0, 'async_trait>(
                &'life0 self,
                id: u64,
            ) -> ::core::pin::Pin<
                Box<dyn ::core::future::Future<Output = Result<(), E>> + Send + 'async_trait>,
            >
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                let site = {
                    static SITE: ::lock_runtime::__private::LockSite = ::lock_runtime::__private::LockSite {
                        path: ::core::concat!(::core::module_path!(), "::", "pay"),
                        template: "order:<id>",
                        options: ::lock_runtime::__private::LockOptions {
                            lease: ::core::option::Option::Some(
                                ::core::time::Duration::from_millis(5000u64),
                            ),
                            ..::lock_runtime::__private::LockOptions::NONE
                        },
                        on_lost: ::lock_runtime::__private::OnLost::Abort,
                        metrics: ::lock_runtime::__private::SiteCache::new(),
                    };
                    &SITE
                };
                let call = ::lock_runtime::__private::Call {
                    key: {
                        let mut key = ::lock_runtime::__private::KeyWriter::new("order:<id>");
                        key.literal("order:");
                        key.value("id", &id, ::core::option::Option::None);
                        key.finish()
                    },
                    client: ::core::option::Option::None,
                    options: site.options,
                };
                let slot = ::std::sync::Arc::new(::lock_runtime::__private::GuardSlot::new());
                let outer = ::std::sync::Arc::clone(&slot);
                #[allow(clippy::redundant_closure_call)]
                let body = (move || -> ::core::pin::Pin<
                    Box<dyn ::core::future::Future<Output = Result<(), E>> + Send + 'async_trait>,
                > {
                    Box::pin(async move {
                        let guard = slot.held().await;
                        let __self = self;
                        #[allow(unused_variables)]
                        let id = id;
                        __self.charge().await
                    })
                })();
                ::std::boxed::Box::pin(async move {
                    let slot = &*outer;
                    let body = ::core::pin::pin!(::core::option::Option::Some(body));
                    match ::lock_runtime::__private::run(
                            site,
                            call,
                            ::core::option::Option::Some(slot),
                            body,
                        )
                        .await
                    {
                        ::core::result::Result::Ok(body) => body,
                        ::core::result::Result::Err(error) => {
                            ::lock_runtime::__private::FromLockError::from_lock_error(error)
                        }
                    }
                })
            }
        "#]],
    );
}

#[test]
fn on_lost_report() {
    let item = quote! {
        async fn export() -> Result<(), E> {
            write().await
        }
    };
    check(
        quote!(key = "export", on_lost = "report"),
        &item,
        &expect![[r#"
            async fn export() -> Result<(), E> {
                let site = {
                    static SITE: ::lock_runtime::__private::LockSite = ::lock_runtime::__private::LockSite {
                        path: ::core::concat!(::core::module_path!(), "::", "export"),
                        template: "export",
                        options: ::lock_runtime::__private::LockOptions {
                            ..::lock_runtime::__private::LockOptions::NONE
                        },
                        on_lost: ::lock_runtime::__private::OnLost::Report,
                        metrics: ::lock_runtime::__private::SiteCache::new(),
                    };
                    &SITE
                };
                let call = ::lock_runtime::__private::Call {
                    key: {
                        let mut key = ::lock_runtime::__private::KeyWriter::new("export");
                        key.literal("export");
                        key.finish()
                    },
                    client: ::core::option::Option::None,
                    options: site.options,
                };
                let body = async move {
                    #[allow(
                        unreachable_code,
                        unused_variables,
                        clippy::diverging_sub_expression,
                        clippy::let_unit_value,
                        clippy::needless_return,
                        clippy::empty_loop
                    )]
                    if false {
                        let value: Result<(), E> = loop {};
                        return value;
                    }
                    write().await
                };
                let body = ::core::pin::pin!(::core::option::Option::Some(body));
                match ::lock_runtime::__private::run(site, call, ::core::option::Option::None, body)
                    .await
                {
                    ::core::result::Result::Ok(body) => body,
                    ::core::result::Result::Err(error) => {
                        ::lock_runtime::__private::FromLockError::from_lock_error(error)
                    }
                }
            }
        "#]],
    );
}

#[test]
fn several_keys_are_one_call() {
    let item = quote! {
        async fn transfer(from: u64, to: u64) -> Result<(), E> {
            Ok(())
        }
    };
    check(
        quote!(keys = ["account:<from>", other(to)], guard = both),
        &item,
        &expect![[r#"
            async fn transfer(from: u64, to: u64) -> Result<(), E> {
                let site = {
                    static SITE: ::lock_runtime::__private::LockSite = ::lock_runtime::__private::LockSite {
                        path: ::core::concat!(::core::module_path!(), "::", "transfer"),
                        template: "[\"account:<from>\", other (to)]",
                        options: ::lock_runtime::__private::LockOptions {
                            ..::lock_runtime::__private::LockOptions::NONE
                        },
                        on_lost: ::lock_runtime::__private::OnLost::Abort,
                        metrics: ::lock_runtime::__private::SiteCache::new(),
                    };
                    &SITE
                };
                let call = ::lock_runtime::__private::Call {
                    key: ::lock_runtime::__private::SetKeys::new([
                        {
                            let mut key = ::lock_runtime::__private::KeyWriter::new(
                                "account:<from>",
                            );
                            key.literal("account:");
                            key.value("from", &from, ::core::option::Option::None);
                            key.finish()
                        },
                        ::core::convert::Into::<::lock_runtime::LockKey>::into(other(to)),
                    ]),
                    client: ::core::option::Option::None,
                    options: site.options,
                };
                let slot = ::lock_runtime::__private::GuardSlot::of_set();
                let slot = &slot;
                let body = async move {
                    let both = slot.held().await;
                    #[allow(
                        unreachable_code,
                        unused_variables,
                        clippy::diverging_sub_expression,
                        clippy::let_unit_value,
                        clippy::needless_return,
                        clippy::empty_loop
                    )]
                    if false {
                        let value: Result<(), E> = loop {};
                        return value;
                    }
                    Ok(())
                };
                let body = ::core::pin::pin!(::core::option::Option::Some(body));
                match ::lock_runtime::__private::run_all(
                        site,
                        call,
                        ::core::option::Option::Some(slot),
                        body,
                    )
                    .await
                {
                    ::core::result::Result::Ok(body) => body,
                    ::core::result::Result::Err(error) => {
                        ::lock_runtime::__private::FromLockError::from_lock_error(error)
                    }
                }
            }
        "#]],
    );
}

/// The editor and the function's callers then still find the function.
#[test]
fn a_mistake_in_the_options_leaves_the_function_unchanged() {
    let item = quote! {
        async fn pay(id: u64) -> Result<(), E> {
            Ok(())
        }
    };
    check(
        quote!(key = "order:<idd>", retries = 3),
        &item,
        &expect![[r#"
            async fn pay(id: u64) -> Result<(), E> {
                Ok(())
            }
            ::core::compile_error! {
                "unknown option `retries`, expected one of `key`, `keys`, `mode`, `permits`, `wait`, `lease`, `max_hold`, `min_hold`, `on_lost`, `on_busy`, `or_else`, `guard`, `when`, `release`, `linger`, `fair`, `every`, `retry_failed`, `acknowledged_by`, `wire_format`, `client`, `crate`"
            }
            ::core::compile_error! {
                "`idd` in `<idd>` is not an argument of this function; the arguments are `id`"
            }
        "#]],
    );
}

/// The expansion keeps every token of an incomplete body, so that the editor can complete the code.
#[test]
fn a_half_typed_body_is_kept() {
    let item = quote! {
        async fn pay(order: Order) -> Result<(), E> {
            let total = order.;
            Ok(())
        }
    };
    for args in [quote!(key = "order:<order.id>"), quote!(key = "order:<oops>")] {
        let expansion = distributed_lock(args, &item).to_string();
        assert!(expansion.contains("let total = order . ; Ok (())"), "{expansion}");
        assert!(expansion.contains("async fn pay (order : Order)"), "{expansion}");
    }
}
