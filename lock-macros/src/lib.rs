//! The `#[distributed_lock]` attribute of `lock-runtime`, which re-exports it. Depend on that crate.

mod args;
mod duration;
mod expand;
mod function;
mod template;

use proc_macro::TokenStream;

/// Runs an async function's body only while a distributed lock is held.
///
/// ```ignore
/// use lock_runtime::{LockError, distributed_lock};
///
/// #[distributed_lock(key = "order:<id>", wait = "10s")]
/// async fn pay(id: u64) -> Result<(), LockError> {
///     // Nobody else pays order `id` now, in no process.
///     Ok(())
/// }
/// ```
///
/// | option | meaning | default |
/// |---|---|---|
/// | `key = "order:<id>"` | the key; `<…>` is an argument, a field of one (`<order.id>`), a tuple index or a method call without arguments (`<order.id()>`). `<<` is a `<`, braces are literal. | required |
/// | `key = EXPR` | any other expression that is `Into<String>`: `key = cart_key(&user)` | |
/// | `wait = "10s"` | the whole budget for getting the lock; `"0s"`: one try; `"forever"`: no bound; or an expression of type `Duration` | the client's, 30 s unless configured |
/// | `lease = "5s"` | a fixed lease, never renewed, from 10 ms to 7 days; or an expression of type `Duration` | the client's, renewed until the body ends |
/// | `client = EXPR` | this `LockClient`: `client = self.locks` | the installed one |
/// | `crate = PATH` | where `lock_runtime` is | `::lock_runtime` |
///
/// Durations are whole numbers with `ms`, `s`, `m`, `h` or `d`, and sums of them: `"1m 30s"`.
///
/// # Keys
///
/// A value is encoded so that different arguments never make the same key: `%`, `:`, `{`, `}`,
/// controls, white space and the character that follows the placeholder become percent escapes.
/// Plain ids come out unchanged. `<id:raw>` switches that off. An empty value and a key of more than
/// 1,024 bytes are `LockError::InvalidKey`. Values need `Display`.
///
/// # Which functions
///
/// Any `async fn`, methods with any receiver too, whose return type is a `Result` with an error that
/// is `From<LockError>`. The key is made when the future is first polled, before the arguments move
/// into the body.
///
/// # What it does
///
/// The body becomes an async block that the function hands to the runtime. That takes the lock (one
/// round trip when nobody has it), polls the body only while the lock is provably held, drops it if
/// the lock is lost, and releases the lock (one round trip) when it ends. A nested call on the same
/// key shares the lock and costs no round trip.
///
/// Cancel safe: wherever the function's future is dropped, the body is dropped first and the lock
/// is then free within one round trip, or at the end of its lease if the store cannot be reached.
///
/// # Errors
///
/// The function returns what it always returned, and `LockError`, converted with `From`, when the
/// lock was not taken or was lost before the body was done.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::distributed_lock(args.into(), &item.into()).into()
}
