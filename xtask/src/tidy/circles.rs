//! Circles of files: files of a crate that need one another.
//!
//! A file needs another when it names something the other defines, however often it was handed on
//! by `use` on the way. Declaring a module and handing its names on needs nothing, and so does using
//! what the head of the file's own module (or of those around it) defines: heads say what all below
//! them share. Methods are not looked for, nor is what only tests need.
//!
//! Invariant: only the text is looked at; what cannot be followed counts as nothing needed.

use std::collections::{BTreeMap, BTreeSet};

/// A path as a file writes it, or from the root of the crate.
type Path = Vec<String>;

/// What the text of one file says.
struct File {
    module: Path,
    /// Names that `use` brings in, and where they come from.
    imports: BTreeMap<String, Path>,
    /// Modules all of whose names are brought in.
    globs: Vec<Path>,
    /// The paths that stand in the code, a single name being the shortest.
    paths: BTreeSet<Path>,
}

/// The circles among the files of one crate, each sorted. Names begin with `source`, its `src/`.
pub fn circles(source: &str, files: &[(String, String)]) -> Vec<Vec<String>> {
    let modules: BTreeMap<Path, &str> =
        files.iter().map(|(name, _)| (module(source, name), name.as_str())).collect();
    let read: BTreeMap<&str, File> = files
        .iter()
        .map(|(name, text)| (name.as_str(), File::read(module(source, name), text)))
        .collect();
    let krate = Crate { modules, files: read };
    let needs = krate.files.keys().map(|name| (*name, krate.needs(name))).collect();
    strongly_connected(&needs)
}

/// The module a file holds: none for the root of the crate.
pub fn module(source: &str, name: &str) -> Path {
    let inside = name.strip_prefix(source).unwrap_or(name).trim_end_matches(".rs");
    let parts = inside.split('/').filter(|part| !matches!(*part, "" | "mod" | "lib" | "main"));
    parts.map(str::to_owned).collect()
}

impl File {
    fn read(module: Path, text: &str) -> Self {
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let mut file =
            Self { module, imports: BTreeMap::new(), globs: Vec::new(), paths: BTreeSet::new() };
        let mut rest: Path = tokens(product).into_iter().map(|(_, token)| token).collect();
        while let Some((first, _)) = rest.split_first() {
            if first == "use" {
                let end = rest.iter().position(|token| token == ";").unwrap_or(rest.len());
                file.import(&[], rest.get(1..end).unwrap_or_default());
                rest.drain(..end);
            } else if is_name(first) {
                let mut path = vec![first.clone()];
                let mut at = 1;
                while rest.get(at).is_some_and(|token| token == "::")
                    && let Some(next) = rest.get(at + 1).filter(|token| is_name(token))
                {
                    path.push(next.clone());
                    at += 2;
                }
                file.paths.insert(path);
                rest.drain(..at);
            } else {
                rest.drain(..1);
            }
        }
        file
    }

    fn import(&mut self, before: &[String], tree: &[String]) {
        let mut path = before.to_vec();
        let mut rest = tree.iter();
        while let Some(token) = rest.next() {
            match token.as_str() {
                "::" => {}
                "{" => {
                    let inner = rest.as_slice();
                    let inner = inner.get(..inner.len().saturating_sub(1)).unwrap_or_default();
                    for part in split_at_commas(inner) {
                        self.import(&path, part);
                    }
                    return;
                }
                "*" => return self.globs.push(path),
                "as" => {
                    if let Some(name) = rest.next() {
                        self.imports.insert(name.clone(), path);
                    }
                    return;
                }
                "self" if !path.is_empty() => {}
                name => path.push(name.to_owned()),
            }
        }
        if let Some(name) = path.last() {
            self.imports.insert(name.clone(), path.clone());
        }
    }
}

/// A line of code without its comment.
fn code_of(line: &str) -> &str {
    let is_comment = line.trim_start().starts_with("//");
    if is_comment { "" } else { line.split(" // ").next().unwrap_or(line) }
}

pub fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and every other character by itself, each with the number of its line; comments and
/// texts are left out.
pub fn tokens(text: &str) -> Vec<(usize, String)> {
    let code = text.lines().map(code_of).collect::<Vec<_>>().join("\n");
    let mut out = Vec::new();
    let mut line = 1;
    let mut rest = code.as_str();
    while let Some(first) = rest.chars().next() {
        let length = if is_name(rest) {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else if first == '"' {
            let text = rest.get(1..).unwrap_or_default();
            let mut escaped = false;
            let end = text.find(|c| {
                let end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                end
            });
            let (text, later) = text.split_at(end.map_or(text.len(), |end| end + 1));
            line += text.matches('\n').count();
            rest = later;
            continue;
        } else if rest.starts_with("'\"'") {
            3
        } else {
            first.len_utf8()
        };
        let (token, later) = rest.split_at(length);
        if token == "\n" {
            line += 1;
        } else if !token.trim().is_empty() {
            out.push((line, token.to_owned()));
        }
        rest = later;
    }
    out
}

fn split_at_commas(tree: &[String]) -> Vec<&[String]> {
    let mut depth = 0;
    tree.split(|token| {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        token == "," && depth == 0
    })
    .collect()
}

struct Crate<'a> {
    modules: BTreeMap<Path, &'a str>,
    files: BTreeMap<&'a str, File>,
}

impl<'a> Crate<'a> {
    /// The other files that the file called `name` needs.
    fn needs(&self, name: &str) -> BTreeSet<&'a str> {
        let Some(file) = self.files.get(name) else { return BTreeSet::new() };
        let named = file.paths.iter().filter_map(|path| self.definer(file, path, 0));
        let globs = file.globs.iter().filter_map(|path| {
            let path = self.absolute(file, path)?;
            self.modules.get(&path).copied()
        });
        let unnamed = file.imports.get("_").and_then(|path| self.definer(file, path, 0));
        named.chain(globs).chain(unnamed).filter(|other| !self.is_head(file, other)).collect()
    }

    /// Whether `file` lies in the module that the file called `other` holds, or is that file.
    fn is_head(&self, file: &File, other: &str) -> bool {
        self.files.get(other).is_some_and(|other| file.module.starts_with(&other.module))
    }

    /// The file that defines what `path` means in `file`.
    fn definer(&self, file: &File, path: &[String], depth: usize) -> Option<&'a str> {
        // Two names that hand on to each other lead nowhere.
        if depth > 20 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let imported = file.imports.get(first).map(|from| [from, rest].concat());
        let absolute = self.absolute(file, imported.as_deref().unwrap_or(path))?;
        self.defined_at(&absolute, depth + 1)
    }

    fn defined_at(&self, absolute: &[String], depth: usize) -> Option<&'a str> {
        let (length, name) = (0..=absolute.len())
            .rev()
            .find_map(|length| Some((length, *self.modules.get(absolute.get(..length)?)?)))?;
        let file = self.files.get(name)?;
        let rest = absolute.get(length..).unwrap_or_default();
        let first = rest.first()?;
        if file.imports.contains_key(first) {
            return self.definer(file, rest, depth);
        }
        Some(name)
    }

    /// `path` from the root of the crate; nothing if it leads out of it.
    fn absolute(&self, file: &File, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let mut from = match first.as_str() {
            "crate" => Path::new(),
            "self" => file.module.clone(),
            "super" => file.module.split_last().map(|(_, parent)| parent.to_vec())?,
            child => {
                let mut from = file.module.clone();
                from.push(child.to_owned());
                self.modules.contains_key(&from).then_some(from)?
            }
        };
        for part in rest {
            if part == "super" {
                from.pop();
            } else {
                from.push(part.clone());
            }
        }
        Some(from)
    }
}

/// The sets of files, of more than one, in which each is reached from each.
fn strongly_connected(needs: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = needs
        .keys()
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut pending = vec![*start];
            while let Some(name) = pending.pop() {
                pending.extend(needs.get(name).into_iter().flatten().filter(|n| seen.insert(**n)));
            }
            (*start, seen)
        })
        .collect();
    let together = |a: &str, b: &str| {
        reached.get(a).is_some_and(|seen| seen.contains(b))
            && reached.get(b).is_some_and(|seen| seen.contains(a))
    };
    let found: BTreeSet<Vec<String>> = needs
        .keys()
        .map(|name| {
            let members = needs.keys().filter(|other| *other == name || together(name, other));
            members.map(|member| (*member).to_owned()).collect()
        })
        .filter(|members: &Vec<String>| members.len() > 1)
        .collect();
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<(String, String)> =
            files.iter().map(|(name, text)| (format!("src/{name}"), (*text).to_owned())).collect();
        circles("src/", &files)
    }

    #[test]
    fn lists_of_names_and_paths_in_the_code_are_followed() {
        let circle = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod inner;"),
            ("a/inner.rs", "use crate::{x::Y, b::{self, Other}};\npub fn f() { b::g() }"),
            ("b.rs", "pub struct Other;\npub fn g() { crate::a::inner::f() }"),
        ];
        assert_eq!(found(&circle), [["src/a/inner.rs", "src/b.rs"]]);
    }

    #[test]
    fn heads_names_handed_on_texts_comments_and_tests_make_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b;\npub use a::f;\npub struct Shared;"),
            ("a.rs", "use super::Shared;\n// crate::b::g\npub fn f(s: Shared) {}"),
            ("b.rs", "pub fn g() { crate::f(\"\\\"\") }\n"),
            ("c.rs", "pub fn h() { say(\"crate::d::i\") }"),
            ("d.rs", "pub fn i() { super::c::h() }"),
            ("e.rs", "pub fn j() {}\n#[cfg(test)]\nmod tests {\n    use crate::k::l;\n}"),
            ("k.rs", "pub fn l() { crate::e::j() }"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }
}
