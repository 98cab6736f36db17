//! Users, groups and projects by name or number.
//!
//! Invariant: a name becomes the number it has on this machine, or nothing.

use std::fs;

/// Whose quota or usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project, known by number only.
    Project,
}

/// The prefixes of quotas: name before the `@`, whose, whether objects are counted.
pub const QUOTAS: [(&str, Who); 6] = [
    ("userquota@", Who::User),
    ("groupquota@", Who::Group),
    ("projectquota@", Who::Project),
    ("userobjquota@", Who::User),
    ("groupobjquota@", Who::Group),
    ("projectobjquota@", Who::Project),
];

/// Whose a property as `userused@root` is, what of his, and how he is called.
pub fn of_property(property: &str) -> Option<(Who, &str, &str)> {
    let (what, whom) = property.split_once('@')?;
    [("user", Who::User), ("group", Who::Group), ("project", Who::Project)]
        .into_iter()
        .find_map(|(prefix, who)| Some((who, what.strip_prefix(prefix)?, whom)))
}

/// The number of a user, group or project named or numbered by `text`.
pub fn id(who: Who, text: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let file = match who {
        Who::User => "/etc/passwd",
        Who::Group => "/etc/group",
        Who::Project => return None,
    };
    let table = fs::read_to_string(file).ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// The name of a user or group with this number on this machine.
pub fn name(who: Who, id: u64) -> Option<String> {
    let file = match who {
        Who::User => "/etc/passwd",
        Who::Group => "/etc/group",
        Who::Project => return None,
    };
    let table = fs::read_to_string(file).ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u64 = fields.nth(1)?.parse().ok()?;
        (number == id).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(id(Who::User, "root"), Some(0));
        assert_eq!(id(Who::Group, "root"), Some(0));
        assert_eq!(id(Who::User, "1000"), Some(1000));
        assert_eq!(id(Who::Project, "root"), None);
        assert_eq!(id(Who::Project, "5"), Some(5));
        assert_eq!(id(Who::User, "no such user"), None);
    }
}
