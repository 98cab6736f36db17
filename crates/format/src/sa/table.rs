//! The attributes and layouts of one file system, prepared for fast lookups.
//!
//! Invariant: every layout's attributes are registered, and the fixed offsets of a plan follow from
//! the layout alone.

use super::{Attribute, Class, LEGACY_COUNT, Registration, View};
use crate::{Error, Result};

/// Layouts below this number are implicit: 0 is the legacy znode, 1 the empty buffer.
pub const FIRST_STORED_LAYOUT: u16 = 2;

/// Layout numbers have ten bits.
const MAX_LAYOUTS: usize = 1024;
/// More attributes than this in one file system are not credible.
const MAX_ATTRIBUTES: usize = 4096;

/// Marks "not at a fixed offset".
const NOT_FIXED: u32 = u32::MAX;

/// One registered attribute.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) class: Class,
    pub(super) length: u16,
}

/// One layout: the attribute numbers, and where the well-known ones are.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) numbers: Vec<u16>,
    /// Attributes of variable length in it.
    pub(super) variable: usize,
    /// For each [`Attribute`]: its offset after the header if nothing variable stands before it.
    fixed: [u32; Attribute::ALL.len()],
    /// For each [`Attribute`]: whether the layout has it.
    present: u32,
}

impl Plan {
    /// Offset after the header of `attribute`, if it does not depend on the buffer.
    pub(super) fn fixed_offset(&self, attribute: Attribute) -> Option<usize> {
        match self.fixed.get(attribute as usize) {
            Some(&offset) if offset != NOT_FIXED => Some(offset as usize),
            _ => None,
        }
    }

    /// Whether the layout has `attribute`.
    pub(super) fn has(&self, attribute: Attribute) -> bool {
        self.present >> (attribute as u32) & 1 != 0
    }
}

/// Everything a buffer of one file system needs to be understood.
#[derive(Clone, Debug)]
pub struct AttributeTable {
    registered: Vec<Option<Registered>>,
    well_known: [Option<u16>; Attribute::ALL.len()],
    plans: Vec<Option<Plan>>,
}

impl AttributeTable {
    /// Builds the table from the entries of REGISTRY (name, value) and LAYOUTS (layout number,
    /// attribute numbers).
    pub fn new<'a>(
        registry: impl IntoIterator<Item = (&'a [u8], u64)>,
        layouts: impl IntoIterator<Item = (u16, Vec<u16>)>,
    ) -> Result<Self> {
        let mut table =
            Self { registered: Vec::new(), well_known: [None; _], plans: vec![None, None] };
        // The legacy names keep their numbers even if a registry does not list them.
        for attribute in Attribute::ALL.iter().take(usize::from(LEGACY_COUNT)) {
            table.register(attribute.name().as_bytes(), attribute.default_registration())?;
        }
        for (name, raw) in registry {
            table.register(name, Registration::decode(raw)?)?;
        }
        table.add_layout(0, (0..LEGACY_COUNT).collect())?;
        table.add_layout(1, Vec::new())?;
        for (number, attributes) in layouts {
            if number < FIRST_STORED_LAYOUT {
                return Err(Error::new("SA layouts", format!("layout {number} is stored")));
            }
            table.add_layout(number, attributes)?;
        }
        Ok(table)
    }

    fn register(&mut self, name: &[u8], registration: Registration) -> Result<()> {
        let at = usize::from(registration.number);
        if at >= MAX_ATTRIBUTES {
            return Err(Error::new("SA registry", format!("attribute number {at}")));
        }
        if self.registered.len() <= at {
            self.registered.resize(at + 1, None);
        }
        for attribute in Attribute::ALL.iter().filter(|known| known.name().as_bytes() == name) {
            if registration.length != attribute.length() {
                return Err(Error::new(
                    "SA registry",
                    format!("{} has length {}", attribute.name(), registration.length),
                ));
            }
            if let Some(slot) = self.well_known.get_mut(*attribute as usize) {
                *slot = Some(registration.number);
            }
        }
        if let Some(slot) = self.registered.get_mut(at) {
            *slot = Some(Registered {
                name: String::from_utf8_lossy(name).into_owned(),
                class: registration.class,
                length: registration.length,
            });
        }
        Ok(())
    }

    /// Adds an attribute under the next free number (a writer registered it).
    pub fn add_attribute(&mut self, attribute: Attribute) -> Result<Registration> {
        let number = u16::try_from(self.registered.len())
            .map_err(|_| Error::new("SA registry", "too many attributes"))?;
        let registration = Registration { number, ..attribute.default_registration() };
        self.register(attribute.name().as_bytes(), registration)?;
        Ok(registration)
    }

    /// The number for the next layout that is stored: they are consecutive.
    pub fn next_layout(&self) -> u16 {
        u16::try_from(self.plans.len()).unwrap_or(u16::MAX).max(FIRST_STORED_LAYOUT)
    }

    /// Adds a layout (a writer made a new one).
    pub fn add_layout(&mut self, number: u16, numbers: Vec<u16>) -> Result<()> {
        let at = usize::from(number);
        if at >= MAX_LAYOUTS {
            return Err(Error::new("SA layouts", format!("layout number {number}")));
        }
        let mut plan = Plan { variable: 0, fixed: [NOT_FIXED; _], present: 0, numbers: Vec::new() };
        let mut offset = 0_usize;
        for &attribute_number in &numbers {
            let registered = self.registered(attribute_number).ok_or_else(|| {
                let reason = format!("layout {number} names attribute {attribute_number}");
                Error::new("SA layouts", reason)
            })?;
            let known = self.well_known.iter().position(|own| *own == Some(attribute_number));
            if let Some(known) = known {
                plan.present |= 1 << known;
                let offset = u32::try_from(offset).unwrap_or(NOT_FIXED);
                if let Some(slot) = plan.fixed.get_mut(known).filter(|_| plan.variable == 0) {
                    *slot = offset;
                }
            }
            if registered.length == 0 {
                plan.variable += 1;
            }
            offset = offset.saturating_add(usize::from(registered.length).next_multiple_of(8));
        }
        plan.numbers = numbers;
        if self.plans.len() <= at {
            self.plans.resize(at + 1, None);
        }
        if let Some(slot) = self.plans.get_mut(at) {
            *slot = Some(plan);
        }
        Ok(())
    }

    pub(super) fn registered(&self, number: u16) -> Option<&Registered> {
        self.registered.get(usize::from(number))?.as_ref()
    }

    pub(super) fn plan(&self, layout: u16) -> Option<&Plan> {
        self.plans.get(usize::from(layout))?.as_ref()
    }

    /// Number of `attribute` in this file system.
    pub fn number(&self, attribute: Attribute) -> Option<u16> {
        self.well_known.get(attribute as usize).copied().flatten()
    }

    /// Name of an attribute number.
    pub fn name(&self, number: u16) -> Option<&str> {
        self.registered(number).map(|registered| registered.name.as_str())
    }

    /// Class and length (0 = variable) of an attribute number.
    pub fn shape(&self, number: u16) -> Option<(Class, u16)> {
        self.registered(number).map(|registered| (registered.class, registered.length))
    }

    /// Attribute numbers of a layout, in storage order.
    pub fn layout(&self, number: u16) -> Option<&[u16]> {
        self.plan(number).map(|plan| plan.numbers.as_slice())
    }

    /// Number of the stored layout that has exactly these attributes in this order.
    pub fn find_layout(&self, numbers: &[u16]) -> Option<u16> {
        let stored = self.plans.iter().enumerate().skip(usize::from(FIRST_STORED_LAYOUT));
        for (number, plan) in stored {
            if plan.as_ref().is_some_and(|plan| plan.numbers == numbers) {
                return u16::try_from(number).ok();
            }
        }
        None
    }

    /// Opens a bonus or spill buffer.
    pub fn view<'a>(&'a self, buffer: &'a [u8]) -> Result<View<'a>> {
        View::new(self, buffer)
    }
}
