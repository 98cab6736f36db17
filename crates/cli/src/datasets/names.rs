//! Names of datasets on the command line, and what is wrong with those that are none.
//!
//! Invariant: the words are those of OpenZFS.

use cenote_control::report::DatasetKind;

/// Fewest slashes of a name that is nested too deeply for a new dataset.
const NESTING_MAX: usize = 50;

/// What a name is the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A filesystem or volume.
    Dataset,
    /// With an `@`.
    Snapshot,
    /// With a `#`.
    Bookmark,
}

/// What a valid name is the name of; the problem of another.
pub fn shape(name: &str) -> Result<Shape, String> {
    let problem = |text: &str| Err(text.to_owned());
    if name.len() >= 256 {
        return problem("name is too long");
    }
    if name.starts_with('/') {
        return problem("leading slash in name");
    }
    if name.ends_with('/') {
        return problem("trailing slash in name");
    }
    if name.matches(['@', '#']).count() > 1 {
        return problem("multiple '@' and/or '#' delimiters in name");
    }
    if name.split(['/', '@', '#']).any(str::is_empty) {
        return problem("empty component or misplaced '@' or '#' delimiter in name");
    }
    if name.split('/').any(|part| part == ".") {
        return problem("self reference, '.' is found in name");
    }
    if name.split('/').any(|part| part == "..") {
        return problem("parent reference, '..' is found in name");
    }
    let permitted = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ' | '/' | '@' | '#')
    };
    if let Some(wrong) = name.chars().find(|c| !permitted(*c)) {
        return Err(format!("invalid character '{wrong}' in name"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return problem("pool doesn't begin with a letter");
    }
    Ok(match name.find(['@', '#']) {
        None => Shape::Dataset,
        Some(at) if name[at..].starts_with('@') => {
            if name[at..].contains('/') {
                return problem("empty component or misplaced '@' or '#' delimiter in name");
            }
            Shape::Snapshot
        }
        Some(_) => Shape::Bookmark,
    })
}

/// Checks a name where only these kinds are expected; the problem if it is of another.
pub fn check(name: &str, kinds: &[DatasetKind]) -> Result<Shape, String> {
    let shape = shape(name)?;
    match shape {
        Shape::Snapshot if !kinds.contains(&DatasetKind::Snapshot) => {
            Err("snapshot delimiter '@' is not expected here".to_owned())
        }
        Shape::Bookmark if !kinds.contains(&DatasetKind::Bookmark) => {
            Err("bookmark delimiter '#' is not expected here".to_owned())
        }
        Shape::Dataset
            if !kinds.contains(&DatasetKind::Filesystem)
                && !kinds.contains(&DatasetKind::Volume) =>
        {
            let missing = if kinds.contains(&DatasetKind::Snapshot) {
                "missing '@' delimiter in snapshot name"
            } else {
                "missing '#' delimiter in bookmark name"
            };
            Err(missing.to_owned())
        }
        _ => Ok(shape),
    }
}

/// The problem of a name that is to be created or changed to.
pub fn new_name_problem(name: &str, kinds: &[DatasetKind]) -> Option<String> {
    match check(name, kinds) {
        Ok(_) if name.matches('/').count() >= NESTING_MAX => {
            Some("maximum name nesting depth exceeded".to_owned())
        }
        Ok(_) => None,
        Err(_) if name.contains('%') => Some("invalid character % in name".to_owned()),
        Err(problem) => Some(problem),
    }
}

/// The pool a name is in.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_the_words_of_openzfs() {
        assert_eq!(shape("g101/a"), Ok(Shape::Dataset));
        assert_eq!(shape("g101/a@s"), Ok(Shape::Snapshot));
        assert_eq!(shape("g101/a#b"), Ok(Shape::Bookmark));
        for (name, problem) in [
            ("/mnt", "leading slash in name"),
            ("g101/", "trailing slash in name"),
            ("g101/a@", "empty component or misplaced '@' or '#' delimiter in name"),
            ("@", "empty component or misplaced '@' or '#' delimiter in name"),
            ("a//b", "empty component or misplaced '@' or '#' delimiter in name"),
            ("a@b@c", "multiple '@' and/or '#' delimiters in name"),
        ] {
            assert_eq!(shape(name), Err(problem.to_owned()), "{name}");
        }
        let only = [DatasetKind::Filesystem];
        let problem = "snapshot delimiter '@' is not expected here";
        assert_eq!(check("g101@x", &only), Err(problem.to_owned()));
        assert_eq!(pool_of("g101/a@s"), "g101");
    }
}
