//! Which properties a receive sets, and which it leaves out.
//!
//! Invariant: what was asked for and cannot be is refused, or warned of, before what is to be filled is made; of a
//! package of several datasets it holds for those it applies to.

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::change::Encryption;
use cenote_engine::receive::{ReceiveOrder, StreamFacts};
use cenote_format::property;

use super::names::Destination;
use super::words::Speaking;
use super::{DENIED, ENCRYPTION, Session};
use crate::service::delegation::Need;
use crate::service::settings::{encryption_of, input};

/// Whether a property is one of what a stream makes.
fn applies(name: &str, facts: &StreamFacts) -> bool {
    let types = facts.dataset_kind().types();
    property::dataset(name).is_none_or(|native| native.types.intersects(types))
}

impl Session<'_> {
    /// Whether several datasets come together.
    pub(super) fn is_recursive(&self) -> bool {
        self.package.as_ref().is_some_and(|package| package.is_recursive)
    }

    /// Refuses to set what does not apply to what comes, and warns of what is left out for nothing.
    pub(super) fn check_given(
        &mut self,
        facts: &StreamFacts,
        speaking: &Speaking<'_>,
    ) -> Result<(), Failure> {
        if self.is_recursive() {
            return Ok(());
        }
        let request = self.request;
        let words =
            |name: &str| format!("property '{name}' does not apply to datasets of this type");
        if let Some(set) = request.properties.iter().find(|set| !applies(&set.name, facts)) {
            return Err(speaking.refuse(FailureKind::Other, &words(&set.name)));
        }
        let dataset = &speaking.to.dataset;
        for name in request.excluded.iter().filter(|name| !applies(name, facts)) {
            self.warn_once(format!("Warning: {dataset}: {}", words(name)));
        }
        Ok(())
    }

    /// What the engine is asked for.
    pub(super) fn order(
        &self,
        to: &Destination,
        facts: &StreamFacts,
        origin: Option<String>,
        made: bool,
    ) -> cenote_engine::Result<ReceiveOrder> {
        let request = self.request;
        let package = self.package.as_ref();
        let found = package.and_then(|package| package.of_snapshot(facts.to.0));
        let is_top = !self.is_recursive() || found.is_none_or(|(sent, _)| sent.name == self.sent);
        let given = request.properties.iter().filter(|own| applies(&own.name, facts));
        let mut given: Vec<PropertyInput> = given.map(input).collect();
        let excluded = request.excluded.iter().filter(|name| applies(name, facts));
        let excluded: Vec<String> = excluded.cloned().collect();
        let below = given.iter().filter(|_| !is_top).map(|given| given.name.clone());
        let inherited: Vec<String> = below.collect();
        let setting = request.properties.iter().find(|own| own.name == ENCRYPTION);
        let is_set = setting.is_some() || request.key.is_some();
        let inherits = excluded.iter().chain(&inherited).any(|name| name == ENCRYPTION);
        let encryption = match () {
            // A key is made of a passphrase only where it is needed.
            () if made && is_top && is_set => {
                encryption_of(setting.and_then(|own| own.value.number()), request.key.as_ref())?
            }
            // The properties of what is encrypted come only with raw streams.
            () if found.is_some() && !inherits => Encryption::Off,
            () => Encryption::Inherited,
        };
        given.retain(|input| input.name != ENCRYPTION);
        if let Some(key) = request.key.as_ref().filter(|_| is_top) {
            given.push(PropertyInput::text("keylocation", &key.location));
        }
        let mut order = ReceiveOrder {
            dataset: to.dataset.clone(),
            snapshot: to.snapshot.clone(),
            origin,
            force: request.force,
            resumable: request.resumable,
            creator: Some(self.doing.who.uid()),
            beyond_limits: self.doing.who.uid() == 0,
            local: if is_top { given } else { Vec::new() },
            encryption,
            excluded,
            inherited,
            ..ReceiveOrder::default()
        };
        let Some((sent, snapshot)) = found else { return Ok(order) };
        order.received.clone_from(&sent.properties);
        let has_location = order.local.iter().any(|input| input.name == "keylocation");
        if let Some(location) = sent.key_location.as_ref().filter(|_| made && !has_location)
            && facts.raw.is_some()
        {
            order.local.push(PropertyInput::text("keylocation", location));
        }
        if facts.raw.is_some() && package.is_some_and(|package| package.is_raw) {
            order.root = Some(sent.root_of(to.dataset.clone()));
        }
        order.of_snapshot = sent.of_snapshots.get(snapshot).cloned().unwrap_or_default();
        if !request.skip_holds {
            order.holds = sent.holds.get(snapshot).cloned().unwrap_or_default();
        }
        Ok(order)
    }

    /// What who receives may not set or hold is left out, and he hears of it.
    pub(super) fn leave_out_denied(
        &mut self,
        order: &mut ReceiveOrder,
        made: bool,
    ) -> Result<(), Failure> {
        let (doing, all) = (self.doing, self.doing.shown()?);
        let has = |need: Need| doing.service.has(&all, doing.who, &[need]);
        let target = order.dataset.clone();
        let of = |name: &str| {
            let need = Need::of_property(name, &target);
            if made { need.on_new() } else { need }
        };
        let there = self.received_before(&order.dataset)?;
        let kept = there.into_iter().filter(|name| !has(of(name))).collect();
        // It goes with the key.
        let is_of_key = |name: &str| made && name == "keylocation" && self.request.key.is_some();
        let mut denied = Vec::new();
        let received = order.received.as_mut();
        for list in [&mut order.local, &mut order.of_snapshot].into_iter().chain(received) {
            let (allowed, left) = std::mem::take(list)
                .into_iter()
                .partition(|one: &PropertyInput| is_of_key(&one.name) || has(of(&one.name)));
            let left: Vec<PropertyInput> = left;
            denied.extend(left.into_iter().map(|one| one.name));
            *list = allowed;
        }
        order.kept = kept;
        if !order.holds.is_empty() && !has(Need::new("hold", &order.dataset)) {
            order.holds.clear();
            self.warnings.push(format!("cannot hold: {DENIED}"));
        }
        let words = |name| format!("cannot receive {name} property on {target}: {DENIED}");
        denied.into_iter().map(words).for_each(|line| self.warn_once(line));
        Ok(())
    }

    /// The properties a dataset has received values of; none of what is not there yet.
    fn received_before(&self, dataset: &str) -> Result<Vec<String>, Failure> {
        let catalog = self.live.pool().catalog();
        let found = catalog.directory(dataset);
        let found = found.and_then(|directory| catalog.received_properties(&directory));
        match found {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.doing.refused(&error)),
            found => Ok(found.unwrap_or_default()),
        }
    }
}
