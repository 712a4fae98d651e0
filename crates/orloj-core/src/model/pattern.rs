//! Patterns of topic names, as allow-lists have them.

/// Whether `name` matches `pattern`, where `*` stands for any run of characters.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_run() {
        let table = [
            ("*", "anything", true),
            ("orders", "orders", true),
            ("orders", "orders.eu", false),
            ("orders.*", "orders.eu", true),
            ("*.eu", "orders.eu", true),
            ("o*.e*", "orders.eu", true),
            ("o*x*", "orders.eu", false),
            ("ab*ba", "aba", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }
}
