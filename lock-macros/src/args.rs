//! Parses the attribute's options into validated values that keep their spans.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Token};

use crate::duration;
use crate::template::{self, Names, Template};

/// All options, in the order in which error messages list them.
const OPTIONS: [&str; 22] = [
    "key",
    "keys",
    "mode",
    "permits",
    "wait",
    "lease",
    "max_hold",
    "min_hold",
    "on_lost",
    "on_busy",
    "or_else",
    "guard",
    "when",
    "release",
    "linger",
    "fair",
    "every",
    "retry_failed",
    "acknowledged_by",
    "wire_format",
    "client",
    "crate",
];

/// The string values of `wire_format`, and the variants of `WireFormat` that they select.
const FORMATS: [(&str, &str); 3] =
    [("token", "Token"), ("redisson", "Redisson"), ("timestamp", "Timestamp")];

/// The string values of `mode`, and the variants of `LockMode` that they select.
const MODES: [(&str, &str); 2] = [("read", "Read"), ("write", "Write")];

/// The string values of `release`, and the variants of `ReleaseMode` that they select.
const RELEASES: [(&str, &str); 2] = [("awaited", "Awaited"), ("background", "Background")];

/// The bounds of `lease`, `max_hold` and `min_hold`. `LONGEST` also bounds `wait`. `lock-runtime`
/// has the same bounds.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The bounds of `linger`. `lock-runtime` has the same bounds.
const LINGER: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);

/// The bounds of `every`. `lock-runtime` has the same bounds.
const EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=LONGEST;

/// The highest value of `acknowledged_by`. `lock-runtime` has the same bound.
const MOST_REPLICAS: u32 = 1_000;

/// The largest number of permits. `lock-runtime` has the same bound.
const MOST_PERMITS: u32 = 1_000;

pub(crate) struct Args {
    pub(crate) key: Key,
    /// The options that set fields of `LockOptions`.
    pub(crate) lock_options: Vec<LockOption>,
    pub(crate) on_lost: OnLostOption,
    pub(crate) on_failure: OnFailure,
    /// Whether a failed run of a period is repeated.
    pub(crate) retry_failed: bool,
    pub(crate) guard: Option<Ident>,
    pub(crate) when: Option<Expr>,
    pub(crate) client: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

pub(crate) enum Key {
    Template(Template),
    Expression(Expr),
    /// The elements of the option `keys`, each a template or an expression.
    Set(Vec<Key>),
    /// An expression that is an iterator of keys.
    SetExpression(Expr),
}

impl Args {
    /// Whether the option `every` is given.
    pub(crate) fn is_periodic(&self) -> bool {
        self.lock_options.iter().any(|option| option.field == "every")
    }
}

impl Key {
    /// Whether this is the option `keys`.
    pub(crate) fn is_set(&self) -> bool {
        matches!(self, Self::Set(_) | Self::SetExpression(_))
    }

    /// The keys, if all of them are known at compile time.
    pub(crate) fn literals(&self) -> Option<Vec<String>> {
        match self {
            Self::Template(template) => template.text().map(|text| vec![text]),
            Self::Set(keys) => {
                let literals: Option<Vec<_>> = keys.iter().map(Self::literals).collect();
                literals.map(|literals| literals.concat())
            }
            Self::Expression(_) | Self::SetExpression(_) => None,
        }
    }
}

/// A field of `LockOptions` and its value.
pub(crate) struct LockOption {
    pub(crate) field: Ident,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Duration(Duration),
    Wait(Duration),
    WaitForever,
    /// A variant of an enum of the runtime.
    Variant(&'static str, Ident),
    /// A number of replicas.
    Replicas(u32),
    /// A number of permits, and their limit.
    Permits(u32, u32),
    Flag(bool),
    AllReplicas,
    /// An expression that implements `Into<Wait>`.
    WaitExpression(Expr),
    /// An expression that implements `Into<Replicas>`.
    ReplicasExpression(Expr),
    /// An expression that implements `Into<Permits>`.
    PermitsExpression(Expr),
    /// An expression of the field's type.
    Expression(Expr),
}

/// Parses an option's value. The identifier names the option in errors.
type ParseValue = fn(&Ident, Expr) -> syn::Result<Value>;

/// The options that set fields of `LockOptions`, with the parsers of their values.
const LOCK_OPTIONS: [(&str, ParseValue); 12] = [
    ("mode", parse_mode),
    ("permits", parse_permits),
    ("wait", parse_wait),
    ("lease", parse_duration),
    ("max_hold", parse_duration),
    ("min_hold", parse_duration),
    ("acknowledged_by", parse_replicas),
    ("release", parse_release),
    ("linger", parse_linger),
    ("fair", parse_fair),
    ("every", parse_every),
    ("wire_format", parse_wire_format),
];

/// Options that exclude each other, and why.
const CONFLICTS: [(&str, &str, &str); 20] = [
    ("key", "keys", "`keys` locks several keys together, and can contain this one"),
    ("lease", "max_hold", "`max_hold` limits renewal, and `lease` turns renewal off"),
    ("linger", "lease", "a fixed lease is not kept for the next call"),
    ("linger", "min_hold", "a lock with a `min_hold` is not kept for the next call"),
    ("keys", "mode", "several keys are locked for one holder"),
    ("keys", "fair", "each of several keys has a queue of its own"),
    ("linger", "fair", "a fair lock goes to the call that waits for the longest time"),
    ("on_busy", "or_else", "`or_else` already handles a busy lock"),
    ("mode", "fair", "readers and writers are served in the order of processes"),
    ("permits", "mode", "a semaphore has neither readers nor writers"),
    ("keys", "permits", "several keys are locked for one holder"),
    ("permits", "fair", "permits are granted in the order of processes"),
    ("every", "mode", "at most one run is in progress"),
    ("every", "permits", "at most one run is in progress"),
    ("every", "keys", "one key tells whether there was a run"),
    ("every", "lease", "the lock of a run is renewed until the body ends"),
    ("every", "min_hold", "a period has one run, however short it is"),
    ("every", "linger", "the next run is in the next period"),
    ("every", "fair", "most calls of a period do not run"),
    ("every", "wire_format", "only locks in the format `token` have periods"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLostOption {
    Abort,
    Continue,
    Report,
}

/// What the function returns if the lock is not acquired or is lost.
pub(crate) enum OnFailure {
    /// The error.
    Return,
    /// This value if the lock is busy, otherwise the error.
    OnBusy(Expr),
    /// The result of calling this handler with the error.
    OrElse(Expr),
}

/// Parses the options of a function with these arguments. Reports all mistakes at once.
pub(crate) fn parse(tokens: TokenStream, arguments: &[Ident]) -> Result<Args, Error> {
    let options = Punctuated::<Assignment, Token![,]>::parse_terminated.parse2(tokens)?;
    let mut errors = Errors(None);
    let mut values = Values::default();
    for Assignment { name, value } in options {
        let option = name.unraw().to_string();
        if !OPTIONS.contains(&option.as_str()) {
            errors.add(unknown(&name, &option));
        } else if values.0.iter().any(|(given, _)| *given == name) {
            errors.add(Error::new(name.span(), format!("duplicate option `{option}`")));
        } else {
            values.0.push((name, value));
        }
    }

    for (one, other, why) in CONFLICTS {
        let is_off = |option: &str| option == "fair" && values.is_false(option);
        let excludes = |option: &str| values.name(option).filter(|_| !is_off(option));
        if let (Some(_), Some(name)) = (excludes(one), excludes(other)) {
            let problem =
                format!("cannot combine `{one}` with `{other}`: {why}; remove one of the two");
            errors.add(Error::new(name.span(), problem));
        }
    }

    if values.name("key").or(values.name("keys")).is_none() {
        errors.add(Error::new(
            proc_macro2::Span::call_site(),
            "missing option `key`; write `#[distributed_lock(key = \"order:<id>\")]`",
        ));
    }
    let key = errors.take(values.take("key"), |_, value| parse_key(value, arguments));
    let keys = errors.take(values.take("keys"), |_, value| parse_keys(value, arguments));
    let key = key.or(keys);
    let is_periodic = values.name("every").is_some();
    let mut lock_options: Vec<LockOption> = Vec::new();
    for (option, parse) in LOCK_OPTIONS {
        let Some(field) = values.name(option).cloned() else { continue };
        if let Some(value) = errors.take(values.take(option), parse) {
            lock_options.push(LockOption { field, value });
        }
    }
    let on_lost = errors.take(values.take("on_lost"), |_, value| parse_on_lost(&value));
    let guard = errors.take(values.take("guard"), |_, value| parse_guard(value));
    if let Some(name) = values.name("retry_failed").filter(|_| !is_periodic) {
        let problem = "`retry_failed` needs `every`: a run without a period can be repeated anyway";
        errors.add(Error::new(name.span(), problem));
    }
    let retry_failed = errors.take(values.take("retry_failed"), parse_bool);
    let runtime = errors.take(values.take("crate"), |_, value| parse_path(value));
    let on_failure = match (values.take("or_else"), values.take("on_busy")) {
        (Some((_, handler)), _) => OnFailure::OrElse(handler),
        (None, Some((_, value))) => OnFailure::OnBusy(value),
        (None, None) => OnFailure::Return,
    };
    let given = |option| given(&lock_options, option);
    if let (Some((name, Value::Duration(min))), Some((_, Value::Duration(max)))) =
        (given("min_hold"), given("max_hold"))
        && min > max
    {
        errors.add(Error::new(name.span(), "`min_hold` must not be longer than `max_hold`"));
    }
    if let (Some((name, Value::Flag(true))), Some((_, Value::Variant(_, format)))) =
        (given("fair"), given("wire_format"))
        && format != "Token"
    {
        let problem = "cannot combine `fair` with `wire_format`: only locks in the format `token` have \
                       a queue; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
    check_mode(&lock_options, &mut errors);
    check_permits(&lock_options, &mut errors);
    if on_lost == Some(OnLostOption::Report) {
        check_report(&lock_options, &mut errors);
    }
    match (errors.0, key) {
        (Some(errors), _) => Err(errors),
        // Unreachable, because a missing or invalid key has already added an error.
        (None, None) => Err(Error::new(proc_macro2::Span::call_site(), "missing option `key`")),
        (None, Some(key)) => Ok(Args {
            key,
            lock_options,
            on_lost: on_lost.unwrap_or(OnLostOption::Abort),
            on_failure,
            retry_failed: retry_failed.unwrap_or_default(),
            guard,
            when: values.take("when").map(|(_, when)| when),
            client: values.take("client").map(|(_, client)| client),
            runtime,
        }),
    }
}

/// The name and the value of an option, if it is given.
fn given<'o>(lock_options: &'o [LockOption], option: &str) -> Option<(&'o Ident, &'o Value)> {
    let found = lock_options.iter().find(|given| given.field == option);
    found.map(|LockOption { field, value }| (field, value))
}

/// Checks the options beside `mode`.
fn check_mode(lock_options: &[LockOption], errors: &mut Errors) {
    let Some((_, mode)) = given(lock_options, "mode") else { return };
    if let Some((name, Value::Variant(_, format))) = given(lock_options, "wire_format")
        && format != "Token"
    {
        let problem = "cannot combine `mode` with `wire_format`: read-write locks have a layout of \
                       their own; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
    if let (Value::Variant(_, mode), Some((name, Value::Duration(linger)))) =
        (mode, given(lock_options, "linger"))
        && mode == "Read"
        && !linger.is_zero()
    {
        let problem = "cannot combine `linger` with `mode = \"read\"`: readers share a lock, and do \
                       not keep it for the next call; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
    if let (Value::Variant(_, mode), Some((name, Value::Duration(_)))) =
        (mode, given(lock_options, "min_hold"))
        && mode == "Read"
    {
        let problem = "cannot combine `min_hold` with `mode = \"read\"`: readers do not exclude each \
                       other, so a minimum hold would keep no other reader out; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
}

/// Checks the options beside `permits`.
fn check_permits(lock_options: &[LockOption], errors: &mut Errors) {
    if given(lock_options, "permits").is_none() {
        return;
    }
    if let Some((name, Value::Variant(_, format))) = given(lock_options, "wire_format")
        && format != "Token"
    {
        let problem = "cannot combine `permits` with `wire_format`: semaphores have a layout of their \
                       own; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
    if let Some((name, Value::Duration(linger))) = given(lock_options, "linger")
        && !linger.is_zero()
    {
        let problem = "cannot combine `linger` with `permits`: permits are not kept for the \
                       next call; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
}

/// Checks the options beside `on_lost = "report"`.
fn check_report(lock_options: &[LockOption], errors: &mut Errors) {
    if let Some((name, Value::Variant(_, release))) = given(lock_options, "release")
        && release == "Background"
    {
        let problem = "cannot combine `release = \"background\"` with `on_lost = \"report\"`: a \
                       loss can be reported only after the release was answered; remove one of the \
                       two";
        errors.add(Error::new(name.span(), problem));
    }
    if let Some((name, Value::Duration(linger))) = given(lock_options, "linger")
        && !linger.is_zero()
    {
        let problem = "cannot combine `linger` with `on_lost = \"report\"`: a loss can be reported \
                       only after the release was answered; remove one of the two";
        errors.add(Error::new(name.span(), problem));
    }
}

/// The given options and their values.
#[derive(Default)]
struct Values(Vec<(Ident, Expr)>);

impl Values {
    fn name(&self, option: &str) -> Option<&Ident> {
        self.0.iter().map(|(name, _)| name).find(|name| *name == option)
    }

    /// Whether the value of this option is `false`.
    fn is_false(&self, option: &str) -> bool {
        let value = self.0.iter().find(|(name, _)| *name == option).map(|(_, value)| value);
        matches!(value, Some(Expr::Lit(ExprLit { lit: Lit::Bool(flag), .. })) if !flag.value)
    }

    fn take(&mut self, option: &str) -> Option<(Ident, Expr)> {
        let at = self.0.iter().position(|(name, _)| name == option)?;
        Some(self.0.remove(at))
    }
}

struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Parses the value of an option, if the option is given. Records any error.
    fn take<T>(
        &mut self,
        given: Option<(Ident, Expr)>,
        parse: impl FnOnce(&Ident, Expr) -> syn::Result<T>,
    ) -> Option<T> {
        let (name, value) = given?;
        parse(&name, value).map_err(|error| self.add(error)).ok()
    }
}

/// `name = value`.
struct Assignment {
    name: Ident,
    value: Expr,
}

impl Parse for Assignment {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error(format!(
                "expected an option, such as `key = \"order:<id>\"`; the options are `{}`",
                OPTIONS.join("`, `")
            )));
        }
        let name = input.call(Ident::parse_any)?;
        if !input.peek(Token![=]) {
            return Err(Error::new(name.span(), format!("expected `{name} = …`")));
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(Error::new(name.span(), format!("expected a value after `{name} =`")));
        }
        let value = ungrouped(input.parse()?);
        Ok(Self { name, value })
    }
}

/// Removes the invisible group that a `macro_rules!` macro puts around an expression, and
/// parentheses around a literal.
fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped(*group.expr),
        Expr::Paren(paren) if is_literal(&paren.expr) => *paren.expr,
        value => value,
    }
}

fn unknown(name: &Ident, option: &str) -> Error {
    let nearest = OPTIONS
        .iter()
        .map(|known| (distance(option, known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len() / 2);
    let hint = nearest.map_or(String::new(), |(_, known)| format!(" (did you mean `{known}`?)"));
    let list = OPTIONS.join("`, `");
    Error::new(name.span(), format!("unknown option `{option}`{hint}, expected one of `{list}`"))
}

/// The optimal string alignment distance: the number of characters to replace, insert or delete,
/// or to swap with the next one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

fn as_text(value: &Expr) -> Option<&LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text),
        _ => None,
    }
}

fn is_literal(value: &Expr) -> bool {
    matches!(value, Expr::Lit(_))
}

fn parse_key(value: Expr, arguments: &[Ident]) -> syn::Result<Key> {
    if let Some(text) = as_text(&value) {
        return template::parse(text.clone(), Names::Arguments(arguments)).map(Key::Template);
    }
    if is_literal(&value) {
        let problem = "expected a string literal, such as \"order:<id>\", or an expression whose \
                       type implements `Into<LockKey>`";
        return Err(Error::new_spanned(value, problem));
    }
    Ok(Key::Expression(value))
}

fn parse_keys(value: Expr, arguments: &[Ident]) -> syn::Result<Key> {
    let elements = match value {
        Expr::Array(array) if array.elems.is_empty() => {
            let problem = "`keys` is empty; name at least one key, such as \
                           [\"account:<from>\", \"account:<to>\"]";
            return Err(Error::new_spanned(array, problem));
        }
        Expr::Array(array) => array.elems,
        value if is_literal(&value) => {
            let problem = "expected an array of keys, such as [\"account:<from>\", \
                           \"account:<to>\"], or an expression that is an iterator of keys; use \
                           `key` for one key";
            return Err(Error::new_spanned(value, problem));
        }
        value => return Ok(Key::SetExpression(value)),
    };
    let mut errors = Errors(None);
    let mut keys: Vec<Key> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for element in elements {
        let element = ungrouped(element);
        if let Some(text) = as_text(&element) {
            if texts.contains(&text.value()) {
                let problem = format!("the key {:?} is named twice; remove one", text.value());
                errors.add(Error::new(text.span(), problem));
                continue;
            }
            texts.push(text.value());
        }
        match parse_key(element, arguments) {
            Ok(key) => keys.push(key),
            Err(error) => errors.add(error),
        }
    }
    errors.0.map_or(Ok(Key::Set(keys)), Err)
}

fn parse_wait(_: &Ident, value: Expr) -> syn::Result<Value> {
    let Some(text) = as_text(&value) else {
        return expression("wait", value).map(Value::WaitExpression);
    };
    if text.value() == "forever" {
        return Ok(Value::WaitForever);
    }
    let wait =
        duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
    if wait > LONGEST {
        let problem = "`wait` must be at most \"7d\"; use \"forever\" to wait without a limit";
        return Err(Error::new(text.span(), problem));
    }
    Ok(Value::Wait(wait))
}

fn parse_duration(option: &Ident, value: Expr) -> syn::Result<Value> {
    let Some(text) = as_text(&value) else {
        return expression(&option.to_string(), value).map(Value::Expression);
    };
    let fail = |problem: String| Err(Error::new(text.span(), problem));
    if text.value() == "forever" {
        return fail(format!(
            "`{option}` cannot be \"forever\"; use at most \"7d\" or remove the option"
        ));
    }
    match duration::parse(&text.value()) {
        Err(problem) => fail(problem),
        Ok(duration) if !(SHORTEST..=LONGEST).contains(&duration) => fail(format!(
            "`{option}` must be from \"10ms\" to \"7d\"; without this option, {}",
            match option.to_string().as_str() {
                "lease" => "the lock is renewed until the body ends",
                "max_hold" => "the lock is held for as long as the body runs",
                _ => "the lock is released as soon as the body ends",
            }
        )),
        Ok(duration) => Ok(Value::Duration(duration)),
    }
}

fn parse_every(option: &Ident, value: Expr) -> syn::Result<Value> {
    let Some(text) = as_text(&value) else {
        return expression(&option.to_string(), value).map(Value::Expression);
    };
    let every =
        duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
    if !EVERY.contains(&every) {
        let problem = "`every` must be from \"1s\" to \"7d\"";
        return Err(Error::new(text.span(), problem));
    }
    Ok(Value::Duration(every))
}

fn parse_bool(option: &Ident, value: Expr) -> syn::Result<bool> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => Ok(value.value),
        other => {
            let problem = format!("`{option}` must be `true` or `false`");
            Err(Error::new_spanned(other, problem))
        }
    }
}

fn parse_fair(option: &Ident, value: Expr) -> syn::Result<Value> {
    if is_literal(&value) {
        return parse_bool(option, value).map(Value::Flag);
    }
    Ok(Value::Expression(value))
}

fn parse_linger(option: &Ident, value: Expr) -> syn::Result<Value> {
    let Some(text) = as_text(&value) else {
        return expression(&option.to_string(), value).map(Value::Expression);
    };
    let linger =
        duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
    if !linger.is_zero() && !LINGER.contains(&linger) {
        let problem = "`linger` must be from \"10ms\" to \"1s\", or \"0s\" to free the lock at its \
                       release";
        return Err(Error::new(text.span(), problem));
    }
    Ok(Value::Duration(linger))
}

fn parse_on_lost(value: &Expr) -> syn::Result<OnLostOption> {
    match as_text(value).map(LitStr::value).as_deref() {
        Some("abort") => Ok(OnLostOption::Abort),
        Some("continue") => Ok(OnLostOption::Continue),
        Some("report") => Ok(OnLostOption::Report),
        _ => Err(Error::new_spanned(
            value,
            "`on_lost` must be \"abort\" (drop the body), \"continue\" (continue the body without \
             the lock) or \"report\" (drop the body, and also return an error if the release finds \
             that the lock was lost)",
        )),
    }
}

fn parse_wire_format(option: &Ident, value: Expr) -> syn::Result<Value> {
    parse_variant(option, value, "WireFormat", &FORMATS)
}

fn parse_mode(option: &Ident, value: Expr) -> syn::Result<Value> {
    parse_variant(option, value, "LockMode", &MODES)
}

/// Parses a limit, `2 of 10`, or an expression.
fn parse_permits(option: &Ident, value: Expr) -> syn::Result<Value> {
    let given = match &value {
        Expr::Lit(ExprLit { lit: Lit::Int(limit), .. }) => {
            Some(("1".to_owned(), limit.base10_digits().to_owned()))
        }
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            let text = text.value();
            let parts = text.split_once(" of ");
            parts.map(|(count, limit)| (count.trim().to_owned(), limit.trim().to_owned()))
        }
        // A negative number.
        Expr::Lit(_) | Expr::Unary(_) => None,
        _ => return Ok(Value::PermitsExpression(value)),
    };
    let is_number =
        |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let given = given.filter(|(count, limit)| is_number(count) && is_number(limit));
    let problem = match given {
        Some((count, limit)) => match permits_of(&count, &limit) {
            Ok((count, limit)) => return Ok(Value::Permits(count, limit)),
            Err(problem) => problem,
        },
        None => format!(
            "`{option}` must be the number of holders at a time, such as 3, a number of permits from 1 \
             to {MOST_PERMITS}, such as \"2 of 10\", or an expression whose type implements \
             `Into<Permits>`"
        ),
    };
    Err(Error::new_spanned(value, problem))
}

/// The number of permits and their limit, or what is wrong with them. `lock-runtime` has the same rules.
fn permits_of(count: &str, limit: &str) -> Result<(u32, u32), String> {
    let Ok(most) = limit.parse::<u32>() else {
        return Err(format!("the limit {limit} is too large; the largest is {}", u32::MAX));
    };
    // A larger number is above each limit.
    let number = count.parse::<u32>().unwrap_or(u32::MAX);
    let problem = if most == 0 {
        "a semaphore needs a limit of at least 1".to_owned()
    } else if number == 0 {
        format!("0 of {limit} permits would exclude nobody; acquire at least 1")
    } else if number > most {
        format!("{count} of {limit} permits can never be acquired; acquire at most {limit}")
    } else if number > MOST_PERMITS {
        format!("{count} permits are too many for one call; acquire at most {MOST_PERMITS}")
    } else {
        return Ok((number, most));
    };
    Err(problem)
}

fn parse_release(option: &Ident, value: Expr) -> syn::Result<Value> {
    parse_variant(option, value, "ReleaseMode", &RELEASES)
}

/// Parses one of these names, or an expression.
fn parse_variant(
    option: &Ident,
    value: Expr,
    kind: &'static str,
    variants: &[(&str, &str)],
) -> syn::Result<Value> {
    if !is_literal(&value) {
        return Ok(Value::Expression(value));
    }
    let given = as_text(&value).map(LitStr::value).unwrap_or_default();
    match variants.iter().find(|(name, _)| *name == given) {
        Some((_, variant)) => Ok(Value::Variant(kind, Ident::new(variant, value.span()))),
        None => {
            let names: Vec<_> = variants.iter().map(|(name, _)| *name).collect();
            let names = names.join("\", \"");
            let problem =
                format!("`{option}` must be \"{names}\" or an expression of type `{kind}`");
            Err(Error::new_spanned(value, problem))
        }
    }
}

fn parse_replicas(option: &Ident, value: Expr) -> syn::Result<Value> {
    let given = match &value {
        Expr::Lit(ExprLit { lit: Lit::Int(count), .. }) => {
            let count = count.base10_parse().ok().filter(|count| *count <= MOST_REPLICAS);
            count.map(Value::Replicas)
        }
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            (text.value() == "all").then_some(Value::AllReplicas)
        }
        // A negative number.
        Expr::Lit(_) | Expr::Unary(_) => None,
        _ => return Ok(Value::ReplicasExpression(value)),
    };
    given.ok_or_else(|| {
        let problem = format!(
            "`{option}` must be a number of replicas from 0 to {MOST_REPLICAS}, \"all\", or an \
             expression whose type implements `Into<Replicas>`"
        );
        Error::new_spanned(value, problem)
    })
}

fn parse_guard(value: Expr) -> syn::Result<Ident> {
    match &value {
        Expr::Path(path)
            if path.qself.is_none() && path.path.get_ident().is_some_and(|name| name != "self") =>
        {
            path.path.require_ident().cloned()
        }
        _ => Err(Error::new_spanned(
            value,
            "`guard` must be an identifier that names the guard in the body, as in `guard = guard`",
        )),
    }
}

fn expression(option: &str, value: Expr) -> syn::Result<Expr> {
    if is_literal(&value) {
        let problem = format!(
            "expected a duration with a unit, such as `{option} = \"10s\"`, or an expression of \
             type `Duration`"
        );
        return Err(Error::new_spanned(value, problem));
    }
    Ok(value)
}

fn parse_path(value: Expr) -> syn::Result<Path> {
    match value {
        Expr::Path(path) if path.qself.is_none() => Ok(path.path),
        other => Err(Error::new_spanned(
            other,
            "expected the path of `lock_runtime`, such as `crate = ::my_app::lock_runtime`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_the_number_of_edits() {
        for (misspelt, known, expected) in [
            ("kye", "key", 1),
            ("waits", "wait", 1),
            ("leese", "lease", 1),
            ("", "key", 3),
            ("timeout", "key", 6),
        ] {
            assert_eq!(distance(misspelt, known), expected, "{misspelt}");
        }
    }
}
