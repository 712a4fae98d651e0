//! Values that a function could return instead of its own.
//!
//! Invariant: they follow from the type as it is written; one that does not compile is dropped.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// The most for one type.
const VALUES_MAX: usize = 4;
const UNSIGNED: [&str; 11] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "usize",
    "Offset",
    "Timestamp",
    "Millis",
    "PartitionId",
    "f64",
];
const SIGNED: [&str; 6] = ["i8", "i16", "i32", "i64", "i128", "isize"];

/// Values for what a function returns.
pub(crate) fn values_of(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".to_owned()],
        ReturnType::Type(_, returned) => of_type(returned),
    }
}

fn of_type(returned: &Type) -> Vec<String> {
    let mut values = match returned {
        Type::Path(path) => of_path(path),
        Type::Tuple(tuple) if tuple.elems.is_empty() => strings(&["()"]),
        Type::Tuple(tuple) => {
            let parts: Vec<_> = tuple.elems.iter().map(of_type).collect();
            let most = parts.iter().map(Vec::len).max().unwrap_or(0);
            let nth = |n: usize| {
                let part = |part: &Vec<String>| part.get(n).or(part.last()).cloned();
                let parts: Option<Vec<_>> = parts.iter().map(part).collect();
                parts.map(|parts| format!("({})", parts.join(", ")))
            };
            (0..most).filter_map(nth).collect()
        }
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => strings(&["\"\"", "\"xyzzy\""]),
            Type::Slice(_) => strings(&["Vec::leak(Vec::new())"]),
            _ => strings(&["Box::leak(Box::new(Default::default()))"]),
        },
        Type::Never(_) => Vec::new(),
        Type::ImplTrait(_) => Vec::new(),
        _ => strings(&["Default::default()"]),
    };
    values.truncate(VALUES_MAX);
    values
}

fn of_path(path: &syn::TypePath) -> Vec<String> {
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let name = last.ident.to_string();
    let inner = |wrap: fn(&str) -> String| -> Vec<String> {
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Vec::new() };
        let first = arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(inner) => Some(of_type(inner)),
            _ => None,
        });
        first.unwrap_or_default().iter().map(|value| wrap(value)).collect()
    };
    let and = |first: &str, others: Vec<String>| {
        std::iter::once(first.to_owned()).chain(others).collect()
    };
    match &*name {
        "bool" => strings(&["true", "false"]),
        "String" => strings(&["String::new()", "\"xyzzy\".into()"]),
        "Option" => and("None", inner(|value| format!("Some({value})"))),
        "Result" | "CallResult" | "ClientResult" | "KafkaResult" => {
            inner(|value| format!("Ok({value})"))
        }
        "Vec" => and("vec![]", inner(|value| format!("vec![{value}]"))),
        "Box" => inner(|value| format!("Box::new({value})")),
        "Arc" => inner(|value| format!("std::sync::Arc::new({value})")),
        "JobStep" => Vec::new(),
        name if UNSIGNED.contains(&name) => strings(&["0", "1"]),
        name if SIGNED.contains(&name) => strings(&["0", "1", "-1"]),
        _ => strings(&["Default::default()"]),
    }
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(signature: &str) -> Vec<String> {
        let function: syn::ItemFn = syn::parse_str(&format!("{signature} {{}}")).unwrap();
        values_of(&function.sig.output)
    }

    #[test]
    fn values_follow_from_the_type() {
        assert_eq!(values("fn f()"), ["()"]);
        assert_eq!(values("fn f() -> bool"), ["true", "false"]);
        assert_eq!(values("fn f() -> Option<Offset>"), ["None", "Some(0)", "Some(1)"]);
        assert_eq!(values("fn f() -> Result<(), Error>"), ["Ok(())"]);
        assert_eq!(values("fn f() -> ClientResult<bool>"), ["Ok(true)", "Ok(false)"]);
        assert_eq!(values("fn f() -> (bool, u64)"), ["(true, 0)", "(false, 1)"]);
        assert_eq!(values("fn f() -> Cursor"), ["Default::default()"]);
        assert_eq!(values("fn f() -> !"), Vec::<String>::new());
    }
}
