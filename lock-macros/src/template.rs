//! Key templates: `"order:<id>"`.
//!
//! A placeholder's value is encoded at run time so that different values never produce the same
//! key. This requires that the end of the value is recognizable in the key. The value ends at the
//! first character of the literal text that follows the placeholder, and the encoding escapes this
//! character in the value. Two placeholders therefore need literal text between them, and its first
//! character must not occur in an escape.

use proc_macro2::{Ident, Span};
use syn::{Error, Expr, LitStr, Member};

/// A parsed template.
pub(crate) struct Template {
    pub(crate) literal: LitStr,
    pub(crate) segments: Vec<Segment>,
}

impl Template {
    /// The key, if the template has no placeholder.
    pub(crate) fn text(&self) -> Option<String> {
        let literal = |segment: &Segment| match segment {
            Segment::Literal(text) => Some(text.clone()),
            Segment::Placeholder { .. } => None,
        };
        self.segments.iter().map(literal).collect()
    }
}

pub(crate) enum Segment {
    Literal(String),
    Placeholder {
        /// As written in the template, without the suffix.
        name: String,
        value: Expr,
        /// The character that ends the value, if another placeholder follows. `None` for raw
        /// values.
        until: Option<char>,
        raw: bool,
    },
}

/// What a placeholder may refer to.
#[derive(Clone, Copy)]
pub(crate) enum Names<'a> {
    /// An argument of the annotated function.
    Arguments(&'a [Ident]),
    /// One of these names, or any other variable in scope.
    Scope(&'a [Ident]),
}

impl<'a> Names<'a> {
    fn listed(self) -> &'a [Ident] {
        match self {
            Self::Arguments(names) | Self::Scope(names) => names,
        }
    }
}

/// Parses a template. Reports all mistakes at once.
pub(crate) fn parse(literal: LitStr, names: Names<'_>) -> Result<Template, Error> {
    let text = literal.value();
    let span = literal.span();
    let mut problems = Problems { span, all: None };
    let mut segments = Vec::new();
    if text.is_empty() {
        problems.add("the key is empty; write a template, such as \"order:<id>\"".into());
    }
    let mut rest = text.as_str();
    let mut plain = String::new();
    while let Some(start) = rest.find('<') {
        problems.push_text(&rest[..start], &mut plain);
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('<') {
            plain.push('<');
            rest = after;
            continue;
        }
        let Some(end) = rest.find(['<', '>']) else {
            problems.add(format!(
                "unclosed placeholder `<{rest}`; write `<{rest}>`, or `<<` for a literal `<`"
            ));
            rest = "";
            break;
        };
        if rest[end..].starts_with('<') {
            problems.add(format!(
                "unclosed placeholder `<{name}` before the next `<`; write `<{name}>`, or `<<` for \
                 a literal `<`",
                name = &rest[..end]
            ));
            rest = &rest[end..];
            continue;
        }
        push_literal(&mut segments, &mut plain);
        match placeholder(&rest[..end], span, names) {
            Ok(placeholder) => segments.push(placeholder),
            Err(problem) => problems.add(problem),
        }
        rest = &rest[end + 1..];
    }
    problems.push_text(rest, &mut plain);
    push_literal(&mut segments, &mut plain);

    for problem in other_placeholders(&segments, names.listed()) {
        problems.add(problem);
    }
    if let Err(problem) = separate(&mut segments) {
        problems.add(problem);
    }
    match problems.all {
        None => Ok(Template { literal, segments }),
        Some(error) => Err(error),
    }
}

struct Problems {
    span: Span,
    all: Option<Error>,
}

impl Problems {
    /// Adds text without a `<`, in which `>>` stands for a literal `>`.
    fn push_text(&mut self, text: &str, plain: &mut String) {
        let mut parts = text.split('>');
        plain.push_str(parts.next().unwrap_or_default());
        while let Some(part) = parts.next() {
            // Between the two of an escape is nothing.
            let Some(after) = Some(part).filter(|part| part.is_empty()).and(parts.next()) else {
                self.add("stray `>`; write `<id>` for a value, or `>>` for a literal `>`".into());
                return;
            };
            plain.push('>');
            plain.push_str(after);
        }
    }

    fn add(&mut self, problem: String) {
        let error = Error::new(self.span, problem);
        match &mut self.all {
            Some(all) => all.combine(error),
            None => self.all = Some(error),
        }
    }
}

fn push_literal(segments: &mut Vec<Segment>, plain: &mut String) {
    if !plain.is_empty() {
        segments.push(Segment::Literal(std::mem::take(plain)));
    }
}

fn placeholder(name: &str, span: Span, names: Names<'_>) -> Result<Segment, String> {
    let (value, raw) = match name.rsplit_once(':') {
        Some((value, "raw")) => (value, true),
        Some((value, suffix)) if !value.ends_with(':') => {
            return Err(format!(
                "unknown suffix `:{suffix}` in `<{name}>`; the only suffix is `:raw`, as in \
                 `<{value}:raw>`"
            ));
        }
        _ => (name, false),
    };
    if value.trim().is_empty() {
        return Err("empty placeholder; write `<id>`, or `<<` for a literal `<`".into());
    }
    let unsupported = || {
        let (kind, call) = match names {
            Names::Arguments(_) => ("an argument", "key = lock_runtime::key!"),
            Names::Scope(_) => ("a variable", "key!"),
        };
        format!(
            "unsupported placeholder `<{name}>`, expected {kind}, a field, a tuple index or a \
             method call without arguments, such as `<order.id>` or `<order.id()>`; give any other \
             expression a name: `{call}(\"order:<id>\", id = …)`"
        )
    };
    let mut expression: Expr =
        LitStr::new(value, span).parse().map_err(|_: Error| unsupported())?;
    let root = root(&mut expression).ok_or_else(unsupported)?;
    match (names.listed().iter().find(|listed| *listed == root), names) {
        // Resolves like the argument even in a template from a macro, and reports errors at the
        // template.
        (Some(listed), _) => root.set_span(listed.span().located_at(span)),
        (None, Names::Scope(_)) => {}
        (None, Names::Arguments(arguments)) => return Err(no_argument(root, name, arguments)),
    }
    Ok(Segment::Placeholder { name: value.to_owned(), value: expression, until: None, raw })
}

/// The error for a placeholder that names no argument.
fn no_argument(root: &Ident, name: &str, arguments: &[Ident]) -> String {
    let known = match arguments {
        [] => "the function has no named arguments".to_owned(),
        _ => {
            let names: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            // `#[async_trait]` has already replaced the patterns with such names.
            let hidden = names.iter().any(|name| name.starts_with("__arg"));
            let hint = if hidden {
                "; `#[async_trait]` hides the names in patterns, so name the argument and \
                 destructure it in the body"
            } else {
                ""
            };
            format!("the arguments are `{}`{hint}", names.join("`, `"))
        }
    };
    format!("`{root}` in `<{name}>` is not an argument of this function; {known}")
}

/// The identifier at the start of an expression, or `None` if the expression is not allowed in a
/// template.
fn root(expression: &mut Expr) -> Option<&mut Ident> {
    match expression {
        Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => {
            let is_name = path.path.get_ident().is_some();
            path.path.segments.first_mut().filter(|_| is_name).map(|segment| &mut segment.ident)
        }
        Expr::Field(field) => match &field.member {
            Member::Named(_) | Member::Unnamed(_) => root(&mut field.base),
        },
        Expr::MethodCall(call) if call.args.is_empty() && call.turbofish.is_none() => {
            root(&mut call.receiver)
        }
        _ => None,
    }
}

/// Rejects `{}`, and `{id}` and `#id` if `id` is an argument: the author probably expects the syntax of `format!`, or of
/// expressions in Java.
fn other_placeholders(segments: &[Segment], names: &[Ident]) -> Vec<String> {
    let mut problems = Vec::new();
    for segment in segments {
        let Segment::Literal(text) = segment else { continue };
        for after in text.split('#').skip(1) {
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
            let name = &after[..end];
            if names.iter().any(|known| known == name) {
                problems.push(format!("`#{name}` is literal text; write `<{name}>` for the value"));
            }
        }
        for inside in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
            let name = inside.0;
            let root = name.split(['.', ':']).next().unwrap_or_default();
            if name.is_empty() || names.iter().any(|known| known == root) {
                let value = if name.is_empty() { "id" } else { name };
                problems.push(format!(
                    "`{{{name}}}` is literal text, because braces mark a Redis Cluster hash tag; \
                     write `<{value}>` for the value"
                ));
            }
        }
    }
    problems
}

/// Sets the character that ends each placeholder's value.
fn separate(segments: &mut [Segment]) -> Result<(), String> {
    for at in 0..segments.len() {
        let (before, after) = segments.split_at_mut(at + 1);
        let Some(Segment::Placeholder { name, until, raw: false, .. }) = before.last_mut() else {
            continue;
        };
        match after {
            [Segment::Placeholder { name: next, .. }, ..] => {
                return Err(format!(
                    "missing separator between `<{name}>` and `<{next}>`: different values could \
                     produce the same key; write `<{name}>:<{next}>`"
                ));
            }
            [Segment::Literal(text), Segment::Placeholder { name: next, .. }, ..] => {
                let first = text.chars().next().unwrap_or(':');
                if first.is_ascii_hexdigit() || first == '%' {
                    return Err(format!(
                        "`{first}` cannot separate `<{name}>` from `<{next}>`, because it occurs \
                         in percent-encoded values; begin the separator with `:` or `-`"
                    ));
                }
                *until = Some(first);
            }
            _ => {}
        }
    }
    Ok(())
}
