//! The attribute's options: tokens in, checked values with their places out.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Path, Token};

use crate::duration;
use crate::template::{self, Template};

/// The options that there are, in the order in which they are told.
const OPTIONS: [&str; 5] = ["key", "wait", "lease", "client", "crate"];

/// The bounds of `lease`, and the upper one of `wait`; the run time has the same.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(crate) struct Args {
    pub(crate) key: Key,
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<Lease>,
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

pub(crate) enum Lease {
    For(Duration),
    Expression(Expr),
}

/// What was wrong, and what the expansion needs all the same.
pub(crate) struct Rejected {
    pub(crate) errors: Error,
}

/// Parses the options of a function with these arguments. All mistakes are told at once.
pub(crate) fn parse(tokens: TokenStream, arguments: &[String]) -> Result<Args, Rejected> {
    let mut errors = Errors(None);
    let options = match Punctuated::<Assignment, Token![,]>::parse_terminated.parse2(tokens) {
        Ok(options) => options,
        Err(error) => return Err(Rejected { errors: error }),
    };

    let mut seen: Vec<String> = Vec::new();
    let (mut key, mut wait, mut lease, mut client, mut runtime) = (None, None, None, None, None);
    for Assignment { name, value } in options {
        let option = name.unraw().to_string();
        if !OPTIONS.contains(&option.as_str()) {
            errors.add(unknown(&name, &option));
            continue;
        }
        if seen.contains(&option) {
            errors.add(Error::new(name.span(), format!("`{option}` is given twice")));
            continue;
        }
        match option.as_str() {
            "key" => errors.keep(&mut key, parse_key(value, arguments)),
            "wait" => errors.keep(&mut wait, parse_wait(value)),
            "lease" => errors.keep(&mut lease, parse_lease(value)),
            "client" => client = Some(value),
            _ => errors.keep(&mut runtime, parse_path(value)),
        }
        seen.push(option);
    }
    if !seen.iter().any(|option| option == "key") {
        errors.add(Error::new(
            Span::call_site(),
            "`#[distributed_lock]` needs a key: `#[distributed_lock(key = \"order:<id>\")]`",
        ));
    }
    match (errors.0, key) {
        (None, Some(key)) => Ok(Args { key, wait, lease, client, runtime }),
        (Some(errors), _) => Err(Rejected { errors }),
        // A key that is missing or wrong has left an error.
        (None, None) => Err(Rejected { errors: Error::new(Span::call_site(), "no key") }),
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

    fn keep<T>(&mut self, place: &mut Option<T>, value: syn::Result<T>) {
        match value {
            Ok(value) => *place = Some(value),
            Err(error) => self.add(error),
        }
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
        // `crate = crate` is a path of keywords that is no expression of its own.
        let value = input.parse()?;
        Ok(Self { name, value })
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

fn parse_key(value: Expr, arguments: &[String]) -> syn::Result<Key> {
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

fn parse_lease(value: Expr) -> syn::Result<Lease> {
    let Some(text) = as_text(&value) else {
        return expression("lease", value).map(Lease::Expression);
    };
    if text.value() == "forever" {
        let problem = "a fixed lease has an end; leave `lease` out, and the lock is renewed until \
                       the body ends";
        return Err(Error::new(text.span(), problem));
    }
    let lease =
        duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
    if !(SHORTEST_LEASE..=LONGEST).contains(&lease) {
        let problem = "a lease is from \"10ms\" to \"7d\"; without `lease` the lock is renewed \
                       until the body ends";
        return Err(Error::new(text.span(), problem));
    }
    Ok(Lease::For(lease))
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
