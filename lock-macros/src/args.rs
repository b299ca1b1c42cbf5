//! The attribute's options: tokens in, checked values with their places out.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Token};

use crate::duration;
use crate::template::{self, Template};

/// The options that there are, in the order in which they are told.
const OPTIONS: [&str; 13] = [
    "key", "wait", "lease", "max_hold", "min_hold", "on_lost", "on_busy", "or_else", "guard",
    "when", "format", "client", "crate",
];

/// The texts that `format` takes, and the variants of `WireFormat` that they stand for.
const FORMATS: [(&str, &str); 3] =
    [("token", "Token"), ("redisson", "Redisson"), ("timestamp", "Timestamp")];

/// The bounds of `lease` and its like, and the upper one of `wait`; the run time has the same.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(crate) struct Args {
    pub(crate) key: Key,
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<Span>,
    pub(crate) max_hold: Option<Span>,
    pub(crate) min_hold: Option<Span>,
    pub(crate) on_lost: OnLost,
    pub(crate) on_failure: OnFailure,
    pub(crate) guard: Option<Ident>,
    pub(crate) when: Option<Expr>,
    pub(crate) format: Option<Format>,
    pub(crate) client: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

pub(crate) enum Key {
    Template(Template),
    Expression(Expr),
}

pub(crate) enum Wait {
    For(Duration),
    Forever,
    Expression(Expr),
}

/// A duration that is measured like a lease.
pub(crate) enum Span {
    For(Duration),
    Expression(Expr),
}

pub(crate) enum Format {
    /// This variant.
    Named(Ident),
    Expression(Expr),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLost {
    Abort,
    Continue,
    Report,
}

/// What the function returns when its lock was not taken or not kept.
pub(crate) enum OnFailure {
    /// The error.
    Return,
    /// This value if the lock is busy, else the error.
    OnBusy(Expr),
    /// What this makes of the error.
    OrElse(Expr),
}

/// Parses the options of a function with these arguments. All mistakes are told at once.
pub(crate) fn parse(tokens: TokenStream, arguments: &[Ident]) -> Result<Args, Error> {
    let options = Punctuated::<Assignment, Token![,]>::parse_terminated.parse2(tokens)?;
    let mut errors = Errors(None);
    let mut values = Values::default();
    for Assignment { name, value } in options {
        let option = name.unraw().to_string();
        if !OPTIONS.contains(&option.as_str()) {
            errors.add(unknown(&name, &option));
        } else if values.0.iter().any(|(given, _)| *given == name) {
            errors.add(Error::new(name.span(), format!("`{option}` is given twice")));
        } else {
            values.0.push((name, value));
        }
    }

    for (one, other, why) in [
        ("lease", "max_hold", "a fixed lease ends by itself; `max_hold` bounds a renewed lock"),
        ("on_busy", "or_else", "`or_else` gets every lock error, a busy lock too"),
    ] {
        if let (Some(_), Some(name)) = (values.name(one), values.name(other)) {
            let problem = format!("`{one}` and `{other}` do not go together: {why}");
            errors.add(Error::new(name.span(), problem));
        }
    }

    if values.name("key").is_none() {
        errors.add(Error::new(
            proc_macro2::Span::call_site(),
            "`#[distributed_lock]` needs a key: `#[distributed_lock(key = \"order:<id>\")]`",
        ));
    }
    let key = errors.take(values.take("key"), |_, value| parse_key(value, arguments));
    let wait = errors.take(values.take("wait"), |_, value| parse_wait(value));
    let lease = errors.take(values.take("lease"), parse_span);
    let max_hold = errors.take(values.take("max_hold"), parse_span);
    let min_hold_at = values.name("min_hold").cloned();
    let min_hold = errors.take(values.take("min_hold"), parse_span);
    let on_lost = errors.take(values.take("on_lost"), |_, value| parse_on_lost(&value));
    let guard = errors.take(values.take("guard"), |_, value| parse_guard(value));
    let format = errors.take(values.take("format"), |_, value| parse_format(value));
    let runtime = errors.take(values.take("crate"), |_, value| parse_path(value));
    let on_failure = match (values.take("or_else"), values.take("on_busy")) {
        (Some((_, handler)), _) => OnFailure::OrElse(handler),
        (None, Some((_, value))) => OnFailure::OnBusy(value),
        (None, None) => OnFailure::Return,
    };
    if let (Some(Span::For(min)), Some(Span::For(max)), Some(name)) =
        (&min_hold, &max_hold, min_hold_at)
        && min > max
    {
        errors.add(Error::new(name.span(), "`min_hold` is longer than `max_hold`"));
    }
    match (errors.0, key) {
        (Some(errors), _) => Err(errors),
        // A key that is missing or wrong has left an error.
        (None, None) => Err(Error::new(proc_macro2::Span::call_site(), "the key is missing")),
        (None, Some(key)) => Ok(Args {
            key,
            wait,
            lease,
            max_hold,
            min_hold,
            on_lost: on_lost.unwrap_or(OnLost::Abort),
            on_failure,
            guard,
            when: values.take("when").map(|(_, when)| when),
            format,
            client: values.take("client").map(|(_, client)| client),
            runtime,
        }),
    }
}

/// The values that were given, by their options' names.
#[derive(Default)]
struct Values(Vec<(Ident, Expr)>);

impl Values {
    fn name(&self, option: &str) -> Option<&Ident> {
        self.0.iter().map(|(name, _)| name).find(|name| *name == option)
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

    /// The parsed value of an option, if it was given and makes sense.
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
                "expected an option: `{}`, as in `key = \"order:<id>\"`",
                OPTIONS.join("`, `")
            )));
        }
        let name = input.call(Ident::parse_any)?;
        if !input.peek(Token![=]) {
            return Err(Error::new(name.span(), format!("expected `{name} = …`")));
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(Error::new(name.span(), format!("expected a value behind `{name} =`")));
        }
        let value = ungrouped(input.parse()?);
        Ok(Self { name, value })
    }
}

/// The expression itself where a `macro_rules!` macro has put invisible brackets around it, or the
/// user parentheses around a text.
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
    let hint = nearest.map_or(String::new(), |(_, known)| format!("did you mean `{known}`? "));
    let list = OPTIONS.join("`, `");
    Error::new(name.span(), format!("unknown option `{option}`; {hint}the options are `{list}`"))
}

/// How many letters have to be changed, added, left out or swapped with their neighbour (the optimal
/// string alignment distance).
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
        return template::parse(text.clone(), arguments).map(Key::Template);
    }
    if is_literal(&value) {
        let problem = "a key is text, such as \"order:<id>\", or an expression that is \
                       `Into<String>`";
        return Err(Error::new_spanned(value, problem));
    }
    Ok(Key::Expression(value))
}

fn parse_wait(value: Expr) -> syn::Result<Wait> {
    let Some(text) = as_text(&value) else {
        return expression("wait", value).map(Wait::Expression);
    };
    if text.value() == "forever" {
        return Ok(Wait::Forever);
    }
    let wait =
        duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
    if wait > LONGEST {
        let problem = "a wait is at most \"7d\"; use \"forever\" to wait without a bound";
        return Err(Error::new(text.span(), problem));
    }
    Ok(Wait::For(wait))
}

fn parse_span(option: &Ident, value: Expr) -> syn::Result<Span> {
    let Some(text) = as_text(&value) else {
        return expression(&option.to_string(), value).map(Span::Expression);
    };
    let fail = |problem: String| Err(Error::new(text.span(), problem));
    if text.value() == "forever" {
        return fail(format!("`{option}` has an end; leave it out if there is to be none"));
    }
    match duration::parse(&text.value()) {
        Err(problem) => fail(problem),
        Ok(span) if !(SHORTEST..=LONGEST).contains(&span) => fail(format!(
            "`{option}` is from \"10ms\" to \"7d\"; without it {}",
            match option.to_string().as_str() {
                "lease" => "the lock is renewed until the body ends",
                "max_hold" => "the lock is kept for as long as the body runs",
                _ => "the key is free as soon as the body ends",
            }
        )),
        Ok(span) => Ok(Span::For(span)),
    }
}

fn parse_on_lost(value: &Expr) -> syn::Result<OnLost> {
    match as_text(value).map(LitStr::value).as_deref() {
        Some("abort") => Ok(OnLost::Abort),
        Some("continue") => Ok(OnLost::Continue),
        Some("report") => Ok(OnLost::Report),
        _ => Err(Error::new_spanned(
            value,
            "`on_lost` is \"abort\" (the body is dropped), \"continue\" (it runs on, and can ask its \
             guard) or \"report\" (it is dropped, and a loss that only its release finds is an \
             error as well)",
        )),
    }
}

fn parse_format(value: Expr) -> syn::Result<Format> {
    if !is_literal(&value) {
        return Ok(Format::Expression(value));
    }
    let given = as_text(&value).map(LitStr::value).unwrap_or_default();
    match FORMATS.iter().find(|(name, _)| *name == given) {
        Some((_, variant)) => Ok(Format::Named(Ident::new(variant, value.span()))),
        None => {
            let names = FORMATS.map(|(name, _)| name).join("\", \"");
            let problem =
                format!("`format` is one of \"{names}\", or an expression of type `WireFormat`");
            Err(Error::new_spanned(value, problem))
        }
    }
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
            "`guard` is the name that the guard has in the body, such as `guard = guard`",
        )),
    }
}

fn expression(option: &str, value: Expr) -> syn::Result<Expr> {
    if is_literal(&value) {
        let problem = format!(
            "a duration is text with a unit, such as `{option} = \"10s\"`, or an expression of \
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
            "expected the path of the crate, such as `crate = ::my_app::lock_runtime`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_options_are_near() {
        for (misspelt, distance_to, expected) in [
            ("kye", "key", 1),
            ("waits", "wait", 1),
            ("leese", "lease", 1),
            ("", "key", 3),
            ("timeout", "key", 6),
        ] {
            assert_eq!(distance(misspelt, distance_to), expected, "{misspelt}");
        }
    }
}
