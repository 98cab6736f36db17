//! dRAID geometry: groups and slices, spares, and which sectors of which children hold a block.
//!
//! Chapter 03, section 5. Pure arithmetic on a checked shape. Invariant of a [`Draid`]: groups tile
//! a slice exactly, a group is never wider than the disks it is spread over, and every divisor is
//! positive.

use super::error::VdevError;
use super::layout::{Column, MAX_BLOCK, Map, round_up};
use super::permutation::Permutations;
use super::raidz::deflate_ratio;

/// Bytes each child gives to one row.
pub const ROW_HEIGHT: u64 = 16 << 20;
/// Bytes of each child left unused for later use by the layout.
const RESERVED: u64 = 32 << 20;

/// The numbers of a dRAID configuration, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidConfig {
    /// Sector shift of the top-level vdev.
    pub ashift: u64,
    /// Child vdevs.
    pub children: usize,
    /// `nparity`.
    pub parity: u64,
    /// `draid_ndata`.
    pub data: u64,
    /// `draid_nspares`.
    pub spares: u64,
    /// `draid_ngroups`.
    pub groups: u64,
    /// `draid_nchildren`: children of one failure domain set, if that feature is used.
    pub set: Option<u64>,
}

/// The shape of a dRAID vdev.
#[derive(Debug, Clone)]
pub struct Draid {
    ashift: u32,
    parity: u64,
    data: u64,
    spares: u64,
    groups: u64,
    /// All child vdevs.
    width: u64,
    /// Children of one permutation.
    set: u64,
    /// Failure groups: `width / set`, 1 without failure domains.
    domains: u64,
    permutations: Permutations,
}

/// Where one group of a slice starts.
struct GroupPlace {
    /// Number of the permutation to use.
    permutation: u64,
    /// Position of column 0.
    start: u64,
    /// Positions that hold groups (the others are spares).
    positions: u64,
    /// Row of column 0.
    row: u64,
}

impl Draid {
    /// Checks a configuration and makes its permutations.
    pub fn new(config: DraidConfig) -> Result<Self, VdevError> {
        let bad = |reason: &str| Err(VdevError::Config(format!("dRAID: {reason} ({config:?})")));
        if !(9..=16).contains(&config.ashift) {
            return bad("impossible sector shift");
        }
        if !(1..=3).contains(&config.parity) {
            return bad("impossible parity");
        }
        let width = config.children as u64;
        let set = config.set.unwrap_or(width);
        if !(2..=255).contains(&width) || set < 2 || !width.is_multiple_of(set) {
            return bad("impossible number of children");
        }
        let domains = width / set;
        if config.data == 0 || config.data > 255 || config.spares > 100 {
            return bad("impossible number of data or spare columns");
        }
        if config.groups == 0 || config.groups > 255 {
            return bad("impossible number of groups");
        }
        let group = config.data + config.parity;
        let draid = Self {
            ashift: config.ashift as u32,
            parity: config.parity,
            data: config.data,
            spares: config.spares,
            groups: config.groups,
            width,
            set,
            domains,
            permutations: Permutations::new(set as usize, domains as usize)?,
        };
        let large = draid.spares % domains;
        let most_spares = draid.spares / domains + u64::from(large != 0);
        if set < group + most_spares {
            return bad("a group does not fit into the children");
        }
        if !(group * draid.groups).is_multiple_of(draid.disks()) {
            return bad("the groups do not fill a slice");
        }
        for domain in 0..domains {
            let count = (0..draid.groups).filter(|&g| draid.domain_of(g).0 == domain).count();
            let cells = count as u64 * group;
            if cells != draid.rows_per_slice() * draid.positions(domain) {
                return bad("the groups do not fill a failure domain");
            }
        }
        Ok(draid)
    }

    /// Columns of a group.
    pub fn group_width(&self) -> u64 {
        self.data + self.parity
    }

    /// Parity columns of a group.
    pub fn parity(&self) -> usize {
        self.parity as usize
    }

    /// Sector shift.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Distributed spares.
    pub fn spares(&self) -> u64 {
        self.spares
    }

    /// Failure groups: 1 without failure domains.
    pub fn domains(&self) -> u64 {
        self.domains
    }

    /// Children that hold data rather than spare space, in any row.
    fn disks(&self) -> u64 {
        self.width - self.spares
    }

    fn rows_per_slice(&self) -> u64 {
        self.groups * self.group_width() / self.disks()
    }

    /// Bytes of every child in one slice.
    pub fn slice_size(&self) -> u64 {
        self.rows_per_slice() * ROW_HEIGHT
    }

    /// Bytes of the vdev's address space in one group.
    pub fn group_size(&self) -> u64 {
        self.group_width() * ROW_HEIGHT
    }

    /// Bytes every allocation is a multiple of, and aligned to.
    pub fn alignment(&self) -> u64 {
        self.group_width() << self.ashift
    }

    /// Allocatable bytes when the smallest child has `child` allocatable bytes (section 5.1).
    pub fn asize_of_children(&self, child: u64) -> u64 {
        let rows = child.saturating_sub(RESERVED) / ROW_HEIGHT;
        let rows = if self.domains > 1 { rows - rows % self.rows_per_slice() } else { rows };
        let bytes = rows.saturating_mul(ROW_HEIGHT).saturating_mul(self.disks());
        bytes - bytes % self.group_size()
    }

    /// Smallest allocatable size of a child so that the vdev has `asize` bytes.
    pub fn child_minimum(&self, asize: u64) -> u64 {
        let share = asize.div_ceil(self.disks());
        share.div_ceil(ROW_HEIGHT).saturating_mul(ROW_HEIGHT).saturating_add(RESERVED)
    }

    /// Allocated bytes of a block of `psize` bytes.
    pub fn asize(&self, psize: u64) -> Option<u64> {
        psize.div_ceil(self.data << self.ashift).checked_mul(self.alignment())
    }

    /// Largest block that fits into `asize` allocated bytes.
    pub fn psize(&self, asize: u64) -> u64 {
        (asize / self.alignment()) * (self.data << self.ashift)
    }

    /// 512ths of the allocated size charged to datasets (section 1).
    pub fn deflate_ratio(&self) -> u64 {
        deflate_ratio(self.asize(1 << 17).unwrap_or(1 << 17))
    }

    /// Positions with groups in failure group `domain`.
    fn positions(&self, domain: u64) -> u64 {
        let large = self.spares % self.domains;
        self.disks() / self.domains + u64::from(large != 0 && domain >= large)
    }

    /// Failure group of a group of a slice, and its index there (0 and itself without domains).
    fn domain_of(&self, group: u64) -> (u64, u64) {
        let (each, large) = (self.groups / self.domains, self.spares % self.domains);
        if large == 0 {
            let domain = group.checked_div(each).unwrap_or(0).min(self.domains - 1);
            return (domain, group - domain * each);
        }
        let small = large * each;
        let domain = if group < small {
            group.checked_div(each).unwrap_or(0)
        } else {
            (large + (group - small) / (each + 1)).min(self.domains - 1)
        };
        let before =
            if domain <= large { domain * each } else { small + (domain - large) * (each + 1) };
        (domain, group - before)
    }

    fn place(&self, group: u64) -> GroupPlace {
        let (slice, index) = (group / self.groups, group % self.groups);
        let (domain, index) = self.domain_of(index);
        let positions = self.positions(domain);
        let cells = index * self.group_width();
        GroupPlace {
            permutation: slice * self.domains + domain,
            start: cells % positions,
            positions,
            row: slice * self.rows_per_slice() + cells / positions,
        }
    }

    /// The layout of a block: `offset` and `size` in bytes.
    pub fn map(&self, offset: u64, size: u64) -> Result<Map, &'static str> {
        let padded = round_up(size, 1 << self.ashift).ok_or("the size overflows")?;
        if size == 0 || padded > MAX_BLOCK {
            return Err("no block has this size");
        }
        if !offset.is_multiple_of(self.alignment()) || offset >> 62 != 0 {
            return Err("the offset is not the start of a dRAID stripe");
        }
        let mut map = Map::new(self.parity(), padded);
        let (mut offset, mut position) = (offset, 0);
        while position < padded {
            let group_end = (offset / self.group_size() + 1) * self.group_size();
            let room = (group_end - offset) / self.group_width() * self.data;
            let part = (padded - position).min(room);
            self.row(&mut map, offset, position, part);
            position += part;
            offset = group_end;
        }
        Ok(map)
    }

    /// Section 5.3: `size` bytes of the block, from `position` on, inside one group.
    fn row(&self, map: &mut Map, offset: u64, position: u64, size: u64) {
        let shift = self.ashift;
        let place = self.place(offset / self.group_size());
        let within = (offset % self.group_size()) / self.group_width();
        let sectors = size >> shift;
        let (quotient, remainder) = (sectors / self.data, sectors % self.data);
        let big = if remainder == 0 { 0 } else { remainder + self.parity };
        let height = (quotient + u64::from(remainder > 0)) << shift;
        let mut next = position;
        for index in 0..self.group_width() {
            let at = place.start + index;
            let (at, row) = if at >= place.positions {
                (at - place.positions, place.row + 1)
            } else {
                (at, place.row)
            };
            let size = (quotient + u64::from(index < big)) << shift;
            let data = index >= self.parity;
            map.push(Column {
                child: self.permutations.child(place.permutation, at as usize),
                offset: row * ROW_HEIGHT + within,
                size,
                pad: height - size,
                position: if data { next } else { 0 },
                sector: 0,
                scratch: false,
            });
            next += if data { size } else { 0 };
        }
        map.end_row();
    }

    /// The child that holds distributed spare `spare` at child offset `offset`, at that same
    /// offset (section 5.4). `None` if there is no such spare.
    pub fn spare_child(&self, spare: u64, offset: u64) -> Option<u32> {
        if spare >= self.spares {
            return None;
        }
        let slice = offset / self.slice_size();
        let number = slice.checked_mul(self.domains)? + spare % self.domains;
        let position = self.set - 1 - spare / self.domains;
        Some(self.permutations.child(number, position as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eleven() -> Draid {
        let config = DraidConfig {
            ashift: 12,
            children: 11,
            parity: 2,
            data: 4,
            spares: 2,
            groups: 3,
            set: None,
        };
        Draid::new(config).unwrap()
    }

    fn places(map: &Map) -> Vec<(u32, u64, u64)> {
        map.columns().iter().map(|c| (c.child, c.offset, c.size >> 12)).collect()
    }

    /// Chapter 03, section 5.6: offsets of a real pool.
    #[test]
    fn maps_of_the_reference() {
        let draid = eleven();
        assert_eq!(draid.slice_size(), 0x2000000);
        assert_eq!(draid.deflate_ratio(), 341);
        let map = draid.map(0x2a60000, 4096).unwrap();
        let at = 0x710000;
        let expected = [(7, at, 1), (8, at, 1), (10, at, 1), (6, at, 0), (0, at, 0), (2, at, 0)];
        assert_eq!(places(&map), expected);
        assert!(map.columns()[3..].iter().all(|c| c.pad == 4096));
        let map = draid.map(0x22848000, 4096).unwrap();
        let at = 0x3c0c000;
        let expected = [(7, at, 1), (1, at, 1), (3, at, 1), (5, at, 0), (4, at, 0), (10, at, 0)];
        assert_eq!(places(&map), expected);
        let map = draid.map(0x40d64000, 20 << 10).unwrap();
        let (at, after) = (0x6ce6000, 0x7ce6000);
        let expected =
            [(7, at, 2), (6, at, 2), (1, at, 2), (10, after, 1), (0, after, 1), (2, after, 1)];
        assert_eq!(places(&map), expected);
        let group = draid.map(draid.group_size(), 4 << 12).unwrap();
        let children: Vec<_> = group.columns().iter().map(|c| (c.child, c.offset)).collect();
        let after = 0x1000000;
        assert_eq!(children, [(4, 0), (3, 0), (9, 0), (7, after), (8, after), (10, after)]);
    }

    #[test]
    fn spares_of_the_reference() {
        let draid = eleven();
        let pairs: Vec<_> = (0..5)
            .map(|slice| slice * draid.slice_size() + 0x1234)
            .map(|y| (draid.spare_child(0, y).unwrap(), draid.spare_child(1, y).unwrap()))
            .collect();
        assert_eq!(pairs, [(1, 5), (2, 6), (3, 7), (4, 8), (5, 9)]);
        assert_eq!(draid.spare_child(2, 0), None);
    }

    #[test]
    fn a_block_at_the_end_of_its_group_is_split() {
        let draid = eleven();
        let offset = draid.group_size() - draid.alignment();
        let map = draid.map(offset, 24 << 10).unwrap();
        assert_eq!(map.row_count(), 2);
        let rows: Vec<u64> =
            map.rows().map(|(_, row)| row.iter().skip(2).map(|c| c.size).sum()).collect();
        assert_eq!(rows, [16 << 10, 8 << 10]);
        let positions: Vec<u64> = map.data_columns().map(|(_, c)| c.position).collect();
        assert_eq!(positions, [0, 4096, 8192, 12288, 16384, 20480]);
    }

    #[test]
    fn no_two_blocks_share_a_sector() {
        let plain = DraidConfig {
            ashift: 12,
            children: 11,
            parity: 2,
            data: 4,
            spares: 2,
            groups: 3,
            set: None,
        };
        let small = DraidConfig { children: 7, parity: 1, data: 2, spares: 1, groups: 2, ..plain };
        let even =
            DraidConfig { children: 12, parity: 1, data: 3, groups: 10, set: Some(6), ..plain };
        let uneven = DraidConfig { spares: 1, groups: 11, ..even };
        for config in [plain, small, even, uneven] {
            let draid = Draid::new(config).unwrap();
            let mut seen = std::collections::HashSet::new();
            // One stripe a MiB is enough to meet every group of several slices.
            let step = draid.alignment() * 256;
            for i in 0..600u64 {
                let map = draid.map(i * step, 4096).unwrap();
                let mut disks = std::collections::HashSet::new();
                for column in map.columns() {
                    assert!(seen.insert((column.child, column.offset)), "{config:?} {i}");
                    assert!(disks.insert(column.child));
                }
                for spare in 0..draid.spares() {
                    for column in map.columns() {
                        let holder = draid.spare_child(spare, column.offset).unwrap();
                        let same_group = map.columns().iter().any(|c| c.child == holder);
                        assert!(!same_group, "{config:?} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn sizes() {
        let draid = eleven();
        assert_eq!(draid.asize(4096), Some(6 << 12));
        assert_eq!(draid.asize(20 << 10), Some(12 << 12));
        assert_eq!(draid.psize(12 << 12), 8 << 12);
        let child = 512 << 20;
        let asize = draid.asize_of_children(child);
        assert_eq!(asize, (30 * 9 / 6) * 6 * ROW_HEIGHT);
        assert!(draid.child_minimum(asize) <= child);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let good = DraidConfig {
            ashift: 12,
            children: 11,
            parity: 2,
            data: 4,
            spares: 2,
            groups: 3,
            set: None,
        };
        for bad in [
            DraidConfig { ashift: 0, ..good },
            DraidConfig { children: 1, ..good },
            DraidConfig { children: 256, ..good },
            DraidConfig { parity: 0, ..good },
            DraidConfig { parity: 4, ..good },
            DraidConfig { data: 0, ..good },
            DraidConfig { data: u64::MAX, ..good },
            DraidConfig { data: 10, ..good },
            DraidConfig { spares: 11, ..good },
            DraidConfig { spares: u64::MAX, ..good },
            DraidConfig { groups: 0, ..good },
            DraidConfig { groups: 4, ..good },
            DraidConfig { groups: 256, ..good },
            DraidConfig { set: Some(0), ..good },
            DraidConfig { set: Some(1), ..good },
            DraidConfig { set: Some(4), ..good },
        ] {
            assert!(Draid::new(bad).is_err(), "{bad:?}");
        }
        let draid = eleven();
        for (offset, size) in
            [(4096, 4096), (0, 0), (0, 32 << 20), (u64::MAX / 24576 * 24576, 4096)]
        {
            assert!(draid.map(offset, size).is_err());
        }
    }
}
