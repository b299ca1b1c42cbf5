//! Key templates: `"order:<id>"`.
//!
//! A placeholder's value is encoded at run time so that different values never make the same key.
//! For that its end must be found in the key: it is the first character of the literal text behind
//! it, which is encoded wherever it occurs in the value. So two placeholders need such a text
//! between them, and one that cannot occur in an escape.

use proc_macro2::{Ident, Span};
use syn::{Error, Expr, LitStr, Member};

/// A parsed template.
pub(crate) struct Template {
    pub(crate) literal: LitStr,
    pub(crate) segments: Vec<Segment>,
}

pub(crate) enum Segment {
    Literal(String),
    Placeholder {
        /// As it was written.
        name: String,
        value: Expr,
        /// What ends it, if another placeholder follows; `None` also for raw values.
        until: Option<char>,
        raw: bool,
    },
}

/// Parses a template. All that is wrong with it is told at once.
pub(crate) fn parse(literal: LitStr, arguments: &[Ident]) -> Result<Template, Error> {
    let text = literal.value();
    let span = literal.span();
    let mut problems = Problems { span, all: None };
    let mut segments = Vec::new();
    if text.is_empty() {
        problems.add("the key is empty; name what is locked, such as \"order:<id>\"".into());
    }
    let mut rest = text.as_str();
    let mut plain = String::new();
    while let Some(start) = rest.find('<') {
        plain.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        if let Some(behind) = rest.strip_prefix('<') {
            plain.push('<');
            rest = behind;
            continue;
        }
        let Some(end) = rest.find(['<', '>']) else {
            problems.add(format!("`<{rest}` is not closed; write `<{rest}>`, or `<<` for a `<`"));
            rest = "";
            break;
        };
        if rest[end..].starts_with('<') {
            problems.add(format!(
                "`<{}` is not closed before the next `<`; write `<<` for a `<`",
                &rest[..end]
            ));
            rest = &rest[end..];
            continue;
        }
        push_literal(&mut segments, &mut plain);
        match placeholder(&rest[..end], span, arguments) {
            Ok(placeholder) => segments.push(placeholder),
            Err(problem) => problems.add(problem),
        }
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    push_literal(&mut segments, &mut plain);

    for problem in braced_arguments(&segments, arguments) {
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

fn placeholder(name: &str, span: Span, arguments: &[Ident]) -> Result<Segment, String> {
    let (value, raw) = match name.rsplit_once(':') {
        Some((value, "raw")) => (value, true),
        Some((value, suffix)) if !value.ends_with(':') => {
            return Err(format!(
                "unknown suffix `:{suffix}` in `<{name}>`; the only one is `:raw`, as in \
                 `<{value}:raw>`"
            ));
        }
        _ => (name, false),
    };
    if value.trim().is_empty() {
        return Err("`<>` names no argument; write `<id>`, or `<<` for a `<`".into());
    }
    let unsupported = || {
        format!(
            "`<{name}>` is not supported; a placeholder is an argument, a field, a tuple index or a \
             method call without arguments, such as `<order.id>` or `<order.id()>`. For anything \
             else use an expression: `key = format!(…)`"
        )
    };
    let mut expression: Expr =
        LitStr::new(value, span).parse().map_err(|_: Error| unsupported())?;
    let root = root(&mut expression).ok_or_else(unsupported)?;
    let Some(argument) = arguments.iter().find(|argument| *argument == root) else {
        let known = match arguments {
            [] => "it has none with a name".to_owned(),
            _ => {
                let names: Vec<String> = arguments.iter().map(ToString::to_string).collect();
                // Another attribute has taken patterns apart before, and given them such names.
                let hidden = names.iter().any(|name| name.starts_with("__arg"));
                let hint = if hidden {
                    "; `#[async_trait]` hides destructured arguments, so name the argument and \
                     destructure it in the body"
                } else {
                    ""
                };
                format!("its arguments are `{}`{hint}", names.join("`, `"))
            }
        };
        return Err(format!("`{root}` in `<{name}>` is no argument of this function; {known}"));
    };
    // The argument's name, wherever the template came from, but reported where the template is.
    root.set_span(argument.span().located_at(span));
    Ok(Segment::Placeholder { name: value.to_owned(), value: expression, until: None, raw })
}

/// The argument that an expression starts from, if it is of a form that may stand in a template.
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

/// `{id}` where `id` is an argument: written by those who know it from `format!`.
fn braced_arguments(segments: &[Segment], arguments: &[Ident]) -> Vec<String> {
    let mut problems = Vec::new();
    for segment in segments {
        let Segment::Literal(text) = segment else { continue };
        for inside in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
            let name = inside.0;
            let root = name.split(['.', ':']).next().unwrap_or_default();
            if arguments.iter().any(|argument| argument == root) {
                problems.push(format!(
                    "`{{{name}}}` is taken literally, because braces are Redis Cluster's; write \
                     `<{name}>` for the argument"
                ));
            }
        }
    }
    problems
}

/// Tells every placeholder what ends it.
fn separate(segments: &mut [Segment]) -> Result<(), String> {
    for at in 0..segments.len() {
        let (before, behind) = segments.split_at_mut(at + 1);
        let Some(Segment::Placeholder { name, until, raw: false, .. }) = before.last_mut() else {
            continue;
        };
        match behind {
            [Segment::Placeholder { name: next, .. }, ..] => {
                return Err(format!(
                    "`<{name}>` and `<{next}>` need something between them, such as \
                     `<{name}>:<{next}>`: otherwise different values make the same key"
                ));
            }
            [Segment::Literal(text), Segment::Placeholder { name: next, .. }, ..] => {
                let first = text.chars().next().unwrap_or(':');
                if first.is_ascii_hexdigit() || first == '%' {
                    return Err(format!(
                        "`{first}` cannot tell where the value of `<{name}>` ends; put something \
                         like `:` or `-` between it and `<{next}>`"
                    ));
                }
                *until = Some(first);
            }
            _ => {}
        }
    }
    Ok(())
}
