//! Pool properties on the command line: `zpool create -o`, `zpool set`.
//!
//! Invariant: as in `super`; `feature@` properties are taken apart by the caller.

use std::path::Path;

use cenote_control::feature::{self, FEATURE_VERSION, LAST_LEGACY_VERSION};
use cenote_control::plan::PropertySetting;
use cenote_control::properties;
use cenote_control::property::{self, Attribute, Kind, Property};

use super::number;

/// Longest comment in bytes.
const COMMENT_MOST: usize = 32;
/// log2 of the smallest and largest block size of a device.
pub const ASHIFT: std::ops::RangeInclusive<u64> = 9..=16;

/// When a property is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With `zpool create -o`.
    Creation,
    /// With `zpool set`.
    Later,
}

/// The native property of that name or short name.
pub fn native(name: &str) -> Option<&'static Property> {
    let name = properties::pool(name).map_or(name, |info| info.name);
    property::pool(name)
}

/// The words of `must be one of`.
fn values_of(property: &Property) -> &'static str {
    properties::pool(property.name).map_or("", |info| info.values)
}

/// Reads one `property=value`, not of a feature.
///
/// # Errors
/// The words of OpenZFS, without `cannot ... 'x': `.
pub fn parse(name: &str, value: &str, when: When) -> Result<PropertySetting, String> {
    let property = native(name).ok_or_else(|| format!("invalid property '{name}'"))?;
    let name = property.name;
    if property.attribute == Attribute::ReadOnly {
        return Err(format!("'{name}' is readonly"));
    }
    let setting = match property.kind {
        Kind::Index(table) => {
            let bad = || format!("'{name}' must be one of '{}'", values_of(property));
            let (_, index) = table.iter().find(|(word, _)| *word == value).ok_or_else(bad)?;
            PropertySetting::number(name, *index)
        }
        Kind::Number if name == "dedup_table_quota" && value == "auto" => {
            PropertySetting::number(name, u64::MAX)
        }
        Kind::Number if value == "none" => PropertySetting::number(name, 0),
        Kind::Number => PropertySetting::number(name, number::parse(value)?),
        Kind::String => PropertySetting::text(name, value),
    };
    check(&setting, when)?;
    Ok(setting)
}

fn check(setting: &PropertySetting, when: When) -> Result<(), String> {
    let name = setting.name.as_str();
    let (number, text) = (setting.value.number(), setting.value.text().unwrap_or(""));
    match (name, number) {
        ("ashift", Some(shift)) if shift != 0 && !ASHIFT.contains(&shift) => {
            let (least, most) = (ASHIFT.start(), ASHIFT.end());
            Err(format!(
                "property 'ashift' number {shift} is invalid, only values between {least} and \
                 {most} are allowed."
            ))
        }
        ("version", Some(version)) => {
            let known = feature::version_is_supported(version);
            // a version is never lowered
            if !known || (when == When::Later && version < FEATURE_VERSION) {
                return Err(format!("property 'version' number {version} is invalid."));
            }
            if version <= LAST_LEGACY_VERSION {
                return Err(format!("pools of version {version} are not supported yet"));
            }
            Ok(())
        }
        ("bootfs", _) if when == When::Creation => {
            Err("property 'bootfs' cannot be set at creation time".to_owned())
        }
        ("altroot", _) if when == When::Later => {
            Err("property 'altroot' can only be set during pool creation or import".to_owned())
        }
        ("altroot", _) if !text.starts_with('/') => Err(format!("bad alternate root '{text}'")),
        ("readonly", _) => Err("property 'readonly' can only be set at import time".to_owned()),
        ("cachefile", _) => cache_file(text),
        ("comment", _) => {
            if !text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
                return Err("comment may only have printable characters".to_owned());
            }
            if text.len() > COMMENT_MOST {
                return Err(format!("comment must not exceed {COMMENT_MOST} characters"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn cache_file(text: &str) -> Result<(), String> {
    if text.is_empty() || text == "none" {
        return Ok(());
    }
    if !text.starts_with('/') {
        let words = "property 'cachefile' must be empty, an absolute path, or 'none'";
        return Err(words.to_owned());
    }
    let path = Path::new(text);
    if text.ends_with('/') || matches!(path.file_name().and_then(|n| n.to_str()), None | Some("."))
    {
        return Err(format!("'{text}' is not a valid file"));
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        return Err(format!("'{}' is not a valid directory", directory.display()));
    }
    Ok(())
}

/// Reads the value of a `feature@` property: whether to enable it.
///
/// # Errors
/// As [`parse`].
pub fn feature(name: &str, value: &str, when: When) -> Result<bool, String> {
    if feature::by_name(name).is_none() {
        return Err(match when {
            When::Creation => format!("feature '{name}' unsupported by kernel"),
            When::Later => format!("feature '{name}' unsupported by kernel"),
        });
    }
    match (value, when) {
        ("enabled", _) => Ok(true),
        ("disabled", When::Creation) => Ok(false),
        ("disabled", When::Later) => {
            Err(format!("property 'feature@{name}' can only be set to 'disabled' at creation time"))
        }
        _ => Err(format!("property 'feature@{name}' can only be set to 'enabled' or 'disabled'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(setting: &str, when: When) -> Result<(), String> {
        let (name, value) = setting.split_once('=').unwrap();
        match name.strip_prefix("feature@") {
            Some(name) => feature(name, value, when).map(|_| ()),
            None => parse(name, value, when).map(|_| ()),
        }
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine (`zpool set ... tank`).
    #[test]
    fn refusals_have_the_words_of_openzfs() {
        for (setting, words) in [
            ("a=b", "invalid property 'a'"),
            ("com.x:y=z", "invalid property 'com.x:y'"),
            ("size=1", "'size' is readonly"),
            ("guid=1", "'guid' is readonly"),
            ("name=x", "'name' is readonly"),
            (
                "ashift=99",
                "property 'ashift' number 99 is invalid, only values between 9 and 16 are \
                 allowed.",
            ),
            ("autoexpand=x", "'autoexpand' must be one of 'on | off'"),
            ("failmode=x", "'failmode' must be one of 'wait | continue | panic'"),
            ("version=1", "property 'version' number 1 is invalid."),
            ("version=x", "bad numeric value 'x'"),
            ("cachefile=rel", "property 'cachefile' must be empty, an absolute path, or 'none'"),
            ("cachefile=/nodir/x", "'/nodir' is not a valid directory"),
            ("altroot=/x", "property 'altroot' can only be set during pool creation or import"),
            ("readonly=on", "property 'readonly' can only be set at import time"),
            (
                "feature@lz4_compress=disabled",
                "property 'feature@lz4_compress' can only be set to 'disabled' at creation time",
            ),
            (
                "feature@lz4_compress=active",
                "property 'feature@lz4_compress' can only be set to 'enabled' or 'disabled'",
            ),
            ("feature@bogus=enabled", "feature 'bogus' unsupported by kernel"),
            ("comment=000000000000000000000000000000001", "comment must not exceed 32 characters"),
        ] {
            assert_eq!(set(setting, When::Later), Err(words.to_owned()), "{setting}");
        }
        for fine in ["comment=hi", "ashift=12", "failmode=continue", "delegation=off"] {
            assert_eq!(set(fine, When::Later), Ok(()), "{fine}");
        }
    }
}
