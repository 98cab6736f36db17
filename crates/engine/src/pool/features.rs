//! Whether a pool's features let it be opened, and how.
//!
//! Invariant: a pool with an active feature this code does not know is never read as if it had not, and
//! never written if the feature forbids it. Chapter 01, sections 11.6 and 16.

use cenote_format::config::PoolConfig;
use cenote_format::feature;

/// A feature this code does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFeature {
    /// Its guid.
    pub guid: String,
    /// What the pool says of it; may be empty.
    pub description: String,
}

/// The pool's own record of its features: guid and reference count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureRecord {
    /// Features a reader must know if they are active (count not 0).
    pub for_read: Vec<(String, u64)>,
    /// Features a writer must know if they are active.
    pub for_write: Vec<(String, u64)>,
    /// Texts of the features.
    pub descriptions: Vec<(String, String)>,
}

/// How a pool may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// In every way.
    ReadWrite,
    /// Only for reading, because of these features.
    ReadOnly(Vec<UnknownFeature>),
    /// Not at all, because of these features.
    None(Vec<UnknownFeature>),
}

/// Features named in a label that are not known here. A label of a pool with feature flags must name
/// its features; `None` if it does not.
pub fn unknown_in_label(label: &PoolConfig) -> Option<Vec<UnknownFeature>> {
    if label.version != Some(feature::FEATURE_VERSION) {
        return Some(Vec::new());
    }
    let named = label.features_for_read.as_ref()?.iter();
    let unknown = named.filter(|guid| feature::by_guid(guid).is_none());
    let plain = |guid: &String| UnknownFeature { guid: guid.clone(), description: String::new() };
    Some(unknown.map(plain).collect())
}

impl FeatureRecord {
    /// How the pool may be opened.
    pub fn access(&self) -> Access {
        let read = self.unknown(&self.for_read);
        if !read.is_empty() {
            return Access::None(read);
        }
        let write = self.unknown(&self.for_write);
        if write.is_empty() { Access::ReadWrite } else { Access::ReadOnly(write) }
    }

    /// Whether the feature of this guid is enabled, active or not.
    pub fn is_enabled(&self, guid: &str) -> bool {
        self.for_read.iter().chain(&self.for_write).any(|(known, _)| known == guid)
    }

    /// Whether the feature of this guid is in use.
    pub fn is_active(&self, guid: &str) -> bool {
        self.for_read.iter().chain(&self.for_write).any(|(known, n)| known == guid && *n != 0)
    }

    fn unknown(&self, features: &[(String, u64)]) -> Vec<UnknownFeature> {
        let active = features.iter().filter(|(_, count)| *count != 0);
        active
            .filter(|(guid, _)| feature::by_guid(guid).is_none())
            .map(|(guid, _)| {
                let text = self.descriptions.iter().find(|(known, _)| known == guid);
                let description = text.map(|(_, text)| text.clone()).unwrap_or_default();
                UnknownFeature { guid: guid.clone(), description }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(guid: &str, description: &str) -> UnknownFeature {
        UnknownFeature { guid: guid.into(), description: description.into() }
    }

    #[test]
    fn only_active_unknown_features_matter() {
        let mut record = FeatureRecord::default();
        record.for_read.push(("com.delphix:hole_birth".into(), 1));
        record.for_read.push(("org.example:later".into(), 0));
        assert_eq!(record.access(), Access::ReadWrite);
        record.for_write.push(("org.example:ledger".into(), 2));
        record.descriptions.push(("org.example:ledger".into(), "Keeps a ledger.".into()));
        let ledger = unknown("org.example:ledger", "Keeps a ledger.");
        assert_eq!(record.access(), Access::ReadOnly(vec![ledger]));
        record.for_read[1].1 = 1;
        assert_eq!(record.access(), Access::None(vec![unknown("org.example:later", "")]));
        assert!(record.is_enabled("org.example:later") && !record.is_active("org.example:x"));
    }

    #[test]
    fn a_label_must_name_its_features() {
        let mut label = PoolConfig { version: Some(5000), ..PoolConfig::default() };
        assert_eq!(unknown_in_label(&label), None);
        label.features_for_read = Some(vec!["org.example:a".into(), "org.openzfs:draid".into()]);
        assert_eq!(unknown_in_label(&label), Some(vec![unknown("org.example:a", "")]));
        label = PoolConfig { version: Some(28), ..PoolConfig::default() };
        assert_eq!(unknown_in_label(&label), Some(Vec::new()));
    }
}
