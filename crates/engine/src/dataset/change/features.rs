//! Features of the pool: enabling them, and counting what uses them.
//!
//! Chapter 06, section 3.2. Invariant: a count is raised only for an enabled feature and never
//! falls below nothing; a dataset that carries a feature's entry counts once for it.

use cenote_format::ObjectId;
use cenote_format::feature::{self, FEATURE_VERSION, Feature, Flags};
use cenote_format::zap::Value;

use super::error_logs::BY_HEAD;
use super::objects::METADATA_ZAP;
use super::{MosChange, OBJECT_DIRECTORY};
use crate::{Error, Result};

const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const ENABLED_TXG: &str = "feature_enabled_txg";

/// The feature of this short name; a name that is not in the table is a slip of ours.
fn known(name: &str) -> Result<&'static Feature> {
    let unknown = || Error::invalid(format!("invalid feature '{name}'"));
    feature::by_name(name).or_else(|| feature::by_guid(name)).ok_or_else(unknown)
}

impl MosChange<'_> {
    fn counts(&self, feature: &Feature) -> Result<Option<ObjectId>> {
        if self.version < FEATURE_VERSION {
            return Ok(None);
        }
        let name = if feature.read_only_compatible() { FOR_WRITE } else { FOR_READ };
        self.pool_entry(name)
    }

    fn count_of(&self, feature: &Feature) -> Result<Option<u64>> {
        let Some(table) = self.counts(feature)? else { return Ok(None) };
        self.number(table, feature.guid)
    }

    /// How many things use the feature of this short name; `None` if it is not enabled.
    pub fn feature_count(&self, name: &str) -> Result<Option<u64>> {
        self.count_of(known(name)?)
    }

    /// The feature of this short name is enabled.
    pub fn is_enabled(&self, name: &str) -> Result<bool> {
        Ok(self.feature_count(name)?.is_some())
    }

    /// The feature of this short name is in use.
    pub fn is_active(&self, name: &str) -> Result<bool> {
        Ok(self.feature_count(name)?.is_some_and(|count| count != 0))
    }

    fn set_count(&self, feature: &'static Feature, count: u64) -> Result<()> {
        let missing = || Error::corrupt("the pool has no record of features");
        let table = self.counts(feature)?.ok_or_else(missing)?;
        self.put_number(table, feature.guid, count)?;
        self.hooks.feature_changed(feature, count);
        Ok(())
    }

    /// So many things use the feature of this short name, which is enabled.
    pub(super) fn set_references(&self, name: &str, count: u64) -> Result<()> {
        self.set_count(known(name)?, count)
    }

    /// One thing more uses the feature of this short name.
    pub fn add_reference(&self, name: &str) -> Result<()> {
        self.add_references(name, 1)
    }

    /// So many things more use the feature of this short name.
    pub(super) fn add_references(&self, name: &str, more: u64) -> Result<()> {
        let feature = known(name)?;
        let disabled = || Error::unsupported(format!("feature '{name}' is not enabled"));
        let count = self.count_of(feature)?.ok_or_else(disabled)?;
        let count =
            count.checked_add(more).ok_or_else(|| Error::corrupt("a feature is overused"))?;
        self.set_count(feature, count)
    }

    /// One thing less uses the feature of this short name.
    pub fn remove_reference(&self, name: &str) -> Result<()> {
        self.remove_references(name, 1)
    }

    /// So many things less use the feature of this short name.
    pub(super) fn remove_references(&self, name: &str, less: u64) -> Result<()> {
        let feature = known(name)?;
        let unused = || Error::corrupt(format!("feature '{name}' is used by less than nothing"));
        let count = self.count_of(feature)?.and_then(|count| count.checked_sub(less));
        self.set_count(feature, count.ok_or_else(unused)?)
    }

    /// The three objects that record features; made with the pool, or by its upgrade to feature
    /// flags.
    pub(super) fn create_feature_objects(&self) -> Result<()> {
        for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
            let table = self.new_table(METADATA_ZAP)?;
            self.add_number(OBJECT_DIRECTORY, name, table.0)?;
        }
        Ok(())
    }

    /// Enables the feature of this short name, and what it depends on before. That it was asked
    /// for is an event of the history.
    pub fn enable_feature(&self, name: &str) -> Result<()> {
        self.enable_silently(name)?;
        self.log_event("set", None, &format!("feature@{}=enabled", known(name)?.name()))
    }

    pub(super) fn enable_silently(&self, name: &str) -> Result<()> {
        self.enable(known(name)?)
    }

    fn enable(&self, feature: &'static Feature) -> Result<()> {
        if self.version < FEATURE_VERSION {
            let reason = "features need a pool of version 5000";
            return Err(Error::unsupported(reason));
        }
        if self.count_of(feature)?.is_some() {
            return Ok(());
        }
        // The table has no cycles: a feature depends on ones that came before it or with it.
        for depends in feature.depends {
            self.enable(known(depends)?)?;
        }
        let missing = || Error::corrupt("the pool has no record of features");
        let descriptions = self.pool_entry(DESCRIPTIONS)?.ok_or_else(missing)?;
        let mut text = feature.description.as_bytes().to_vec();
        text.push(0);
        self.put(descriptions, feature.guid, &Value::of_bytes(&text)?)?;
        let active = feature.flags.contains(Flags::ACTIVE_WHEN_ENABLED);
        self.set_count(feature, u64::from(active))?;
        if self.is_enabled("enabled_txg")? {
            self.add_reference("enabled_txg")?;
            let table = match self.pool_entry(ENABLED_TXG)? {
                Some(table) => table,
                None => {
                    let table = self.new_table(METADATA_ZAP)?;
                    self.add_number(OBJECT_DIRECTORY, ENABLED_TXG, table.0)?;
                    table
                }
            };
            self.put_number(table, feature.guid, self.tx.txg().0)?;
        }
        match feature.name() {
            BY_HEAD => self.divide_error_logs(),
            _ => Ok(()),
        }
    }

    /// The features that a dataset carries, with the values of their entries.
    pub(super) fn dataset_features(
        &self,
        dataset: ObjectId,
    ) -> Result<Vec<(&'static Feature, Value)>> {
        let fields = self.fields(dataset)?;
        Ok(fields
            .into_iter()
            .filter_map(|(name, value)| Some((feature::by_guid(&name)?, value)))
            .filter(|(feature, _)| feature.flags.contains(Flags::PER_DATASET))
            .collect())
    }

    /// The dataset uses the feature of this short name from now on. Nothing happens when it did
    /// already.
    pub fn activate_feature(&self, dataset: ObjectId, name: &str) -> Result<()> {
        self.activate(dataset, known(name)?, &Value::of_u64(0))
    }

    pub(super) fn activate(
        &self,
        dataset: ObjectId,
        feature: &'static Feature,
        value: &Value,
    ) -> Result<()> {
        if self.field(dataset, feature.guid)?.is_some() {
            return Ok(());
        }
        self.set_field(dataset, feature.guid, value)?;
        self.add_reference(feature.guid)
    }

    /// The dataset does not use a feature any more.
    pub(super) fn deactivate(&self, dataset: ObjectId, feature: &'static Feature) -> Result<()> {
        if self.remove_field(dataset, feature.guid)? {
            self.remove_reference(feature.guid)?;
        }
        Ok(())
    }

    /// The dataset uses no features any more: it goes away.
    pub(super) fn deactivate_all(&self, dataset: ObjectId) -> Result<()> {
        let carried = self.dataset_features(dataset)?;
        carried.into_iter().try_for_each(|(feature, _)| self.deactivate(dataset, feature))
    }

    /// `to` carries whatever features `from` carries.
    pub(super) fn copy_features(&self, from: ObjectId, to: ObjectId) -> Result<()> {
        let carried = self.dataset_features(from)?;
        carried.into_iter().try_for_each(|(feature, value)| self.activate(to, feature, &value))
    }
}
