//! raidz geometry: which sectors of which children hold a block, and what it costs.
//!
//! Chapter 03, sections 3 and 4. Pure arithmetic. Invariant: a [`Raidz`] has between 1 and 3 parity
//! columns, more children than parity at every width it ever had, and a sector shift of 9 to 16, so
//! that nothing here divides by zero; every offset is checked.

use super::error::VdevError;
use super::layout::{Column, MAX_BLOCK, Map, round_up};
use cenote_format::Txg;

/// Bytes between the boot area (where the scratch area lies) and the allocatable area of a leaf.
pub const BOOT_TO_DATA: u64 = 0x38_0000;

/// How far a running expansion has come (chapter 03, section 4), from the uberblock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reflow {
    /// Bytes of the vdev's address space that lie at their new place.
    pub offset: u64,
    /// The part below `offset` must be read from the scratch area.
    pub scratch: bool,
}

impl Reflow {
    /// Decodes the uberblock's reflow word: a byte offset and the scratch state.
    pub fn from_word(word: u64) -> Self {
        let offset = (word & ((1 << 55) - 1)) << 9;
        Self { offset, scratch: word >> 55 == 1 }
    }
}

/// The shape of a raidz vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raidz {
    ashift: u32,
    children: u32,
    parity: u32,
    expansions: Vec<Txg>,
    expanding: bool,
}

impl Raidz {
    /// Checks a configuration: `expansions` are the txgs of completed expansions, ascending;
    /// `expanding` says that the last child is just being added.
    pub fn new(
        ashift: u64,
        children: usize,
        parity: u64,
        expansions: Vec<Txg>,
        expanding: bool,
    ) -> Result<Self, VdevError> {
        let bad = |reason: String| Err(VdevError::Config(format!("raidz: {reason}")));
        if !(9..=16).contains(&ashift) {
            return bad(format!("sector shift {ashift}"));
        }
        if !(1..=3).contains(&parity) {
            return bad(format!("{parity} parity columns"));
        }
        if children > 255 {
            return bad(format!("{children} children"));
        }
        if expansions.windows(2).any(|pair| matches!(pair, [a, b] if a > b)) {
            return bad("expansion txgs are not ascending".into());
        }
        let grown = expansions.len() + usize::from(expanding);
        if children <= grown + parity as usize {
            return bad(format!("{children} children, {parity} parity, {grown} expansions"));
        }
        Ok(Self {
            ashift: ashift as u32,
            children: children as u32,
            parity: parity as u32,
            expansions,
            expanding,
        })
    }

    /// Parity columns.
    pub fn parity(&self) -> usize {
        self.parity as usize
    }

    /// Sector shift.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Children now, one being added included.
    pub fn children(&self) -> u32 {
        self.children
    }

    /// An expansion is running.
    pub fn expanding(&self) -> bool {
        self.expanding
    }

    /// Width it was created with.
    pub fn original_width(&self) -> u32 {
        self.children - self.expansions.len() as u32 - u32::from(self.expanding)
    }

    /// Columns (parity included) of a block physically born in `birth`.
    pub fn logical_width(&self, birth: Txg) -> u32 {
        let done = self.expansions.iter().take_while(|&&txg| txg <= birth).count();
        self.original_width() + done as u32
    }

    /// Allocatable bytes when the smallest child has `child` allocatable bytes.
    pub fn asize_of_children(&self, child: u64) -> Option<u64> {
        child.checked_mul(u64::from(self.children - u32::from(self.expanding)))
    }

    /// Allocated bytes of a block of `psize` bytes born in `birth` (section 3.2).
    pub fn asize(&self, psize: u64, birth: Txg) -> Option<u64> {
        asize(psize, self.ashift, u64::from(self.logical_width(birth)), u64::from(self.parity))
    }

    /// Largest block that fits into `asize` allocated bytes, for a block born in `birth`.
    pub fn psize(&self, asize: u64, birth: Txg) -> u64 {
        psize(asize, self.ashift, u64::from(self.logical_width(birth)), u64::from(self.parity))
    }

    /// 512ths of the allocated size charged to datasets, from the original width (section 1).
    pub fn deflate_ratio(&self) -> u64 {
        let width = u64::from(self.original_width());
        let allocated = asize(1 << 17, self.ashift, width, u64::from(self.parity));
        deflate_ratio(allocated.unwrap_or(1 << 17))
    }

    /// The layout of a block: `offset` and `size` in bytes, `birth` its physical birth.
    pub fn map(
        &self,
        offset: u64,
        size: u64,
        birth: Txg,
        reflow: Reflow,
    ) -> Result<Map, &'static str> {
        let sector = 1u64 << self.ashift;
        let padded = round_up(size, sector).ok_or("the size overflows")?;
        if size == 0 || padded > MAX_BLOCK {
            return Err("no block has this size");
        }
        if !offset.is_multiple_of(sector) || offset >> 63 != 0 {
            return Err("the offset is not a sector of the vdev");
        }
        let width = self.logical_width(birth);
        if width == self.children {
            Ok(self.classic(offset, padded, u64::from(width)))
        } else {
            self.expanded(offset, padded, u64::from(width), reflow)
        }
    }

    /// Section 3.1: one row, one column for each child.
    fn classic(&self, offset: u64, size: u64, width: u64) -> Map {
        let shift = self.ashift;
        let parity = u64::from(self.parity);
        let (first, start) = (offset >> shift, ((offset >> shift) / width) << shift);
        let first_child = first % width;
        let sectors = size >> shift;
        let (quotient, remainder) = (sectors / (width - parity), sectors % (width - parity));
        let big = if remainder == 0 { 0 } else { remainder + parity };
        let columns = if quotient == 0 { big } else { width };
        let place = |index: u64| {
            let at = first_child + index;
            ((at % width) as u32, start + if at >= width { 1 << shift } else { 0 })
        };
        let mut map = Map::new(self.parity(), size);
        let mut position = 0;
        for index in 0..columns {
            let (child, offset) = place(swapped(index, self.parity, offset));
            let size = (quotient + u64::from(index < big)) << shift;
            let data = index >= parity;
            let position_here = if data { position } else { 0 };
            position += if data { size } else { 0 };
            map.push(Column {
                child,
                offset,
                size,
                pad: 0,
                position: position_here,
                sector: 0,
                scratch: false,
            });
        }
        map.end_row();
        map
    }

    /// Section 4: a block narrower than the vdev now is, one row for each of its own.
    fn expanded(
        &self,
        offset: u64,
        size: u64,
        width: u64,
        reflow: Reflow,
    ) -> Result<Map, &'static str> {
        let shift = self.ashift;
        let parity = u64::from(self.parity);
        let first = offset >> shift;
        let sectors = size >> shift;
        let (quotient, remainder) = (sectors / (width - parity), sectors % (width - parity));
        let big = if remainder == 0 { 0 } else { remainder + parity };
        let total = sectors + parity * (quotient + u64::from(remainder > 0));
        let rows = total.div_ceil(width);
        let columns = total.min(width);
        let moved = reflow.offset >> shift;
        let mut map = Map::new(self.parity(), size);
        for row in 0..rows {
            let base = first + row * width;
            let is_old = self.expanding && base + columns > moved;
            let physical = u64::from(self.children) - u64::from(is_old);
            let scratch = self.expanding && !is_old && reflow.scratch;
            for index in 0..columns {
                // Absent columns of the last row still count as zeros in its parity.
                let absent = row == rows - 1 && big != 0 && index >= big;
                let sector = base + swapped(index, self.parity, offset);
                let at = (sector / physical) << shift;
                // The scratch copy starts where the boot area does; it is never larger.
                if scratch && at >= BOOT_TO_DATA {
                    return Err("the scratch area does not reach this far");
                }
                let data = index.checked_sub(parity).filter(|_| !absent).map(|data| {
                    if index < big || remainder == 0 {
                        data * rows + row
                    } else {
                        remainder * rows + (data - remainder) * (rows - 1) + row
                    }
                });
                map.push(Column {
                    child: (sector % physical) as u32,
                    offset: at,
                    size: if absent { 0 } else { 1 << shift },
                    pad: 0,
                    position: data.unwrap_or(0) << shift,
                    sector,
                    scratch,
                });
                // What comes next is moved from where the expansion stands, and not from before it.
                if is_old && sector < moved && !absent {
                    let width = u64::from(self.children);
                    let at = (sector / width) << shift;
                    map.push_twin((sector % width) as u32, at, reflow.scratch);
                }
            }
            map.end_row();
        }
        Ok(map)
    }

    /// Widths a block's sectors may have been laid out with since its birth, newest first.
    pub fn widths_since(&self, birth: Txg) -> impl Iterator<Item = u32> + use<> {
        (self.logical_width(birth)..=self.children).rev()
    }
}

/// The column whose place column `index` takes: raidz1 exchanges its first two columns in every
/// other MiB of the vdev's address space.
fn swapped(index: u64, parity: u32, block_offset: u64) -> u64 {
    if parity == 1 && block_offset & (1 << 20) != 0 && index < 2 { 1 - index } else { index }
}

fn asize(psize: u64, ashift: u32, width: u64, parity: u64) -> Option<u64> {
    let data = psize.div_ceil(1 << ashift);
    let used = data.checked_add(parity.checked_mul(data.div_ceil(width - parity))?)?;
    round_up(used, parity + 1)?.checked_mul(1 << ashift)
}

fn psize(asize: u64, ashift: u32, width: u64, parity: u64) -> u64 {
    let mut sectors = asize >> ashift;
    let rows = sectors / width;
    if sectors - rows * width <= parity {
        sectors = rows * width;
    }
    sectors.saturating_sub(parity * sectors.div_ceil(width)) << ashift
}

/// The deflate ratio of a vdev that allocates `asize` bytes for 128 KiB.
pub(super) fn deflate_ratio(asize: u64) -> u64 {
    (1u64 << 17).checked_div(asize >> 9).unwrap_or(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raidz(ashift: u64, children: usize, parity: u64) -> Raidz {
        Raidz::new(ashift, children, parity, Vec::new(), false).unwrap()
    }

    fn places(map: &Map, ashift: u32) -> Vec<(u32, u64, u64)> {
        map.columns().iter().map(|c| (c.child, c.offset, c.size >> ashift)).collect()
    }

    /// Chapter 03, section 3.4.
    #[test]
    fn maps_of_the_reference() {
        type Case = (u64, u64, u64, usize, u64, &'static [(u32, u64, u64)]);
        let cases: [Case; 4] = [
            (
                0x2468a00,
                10,
                9,
                5,
                1,
                &[
                    (0, 0x748200, 3),
                    (1, 0x748200, 3),
                    (2, 0x748200, 3),
                    (3, 0x748200, 2),
                    (4, 0x748200, 2),
                ],
            ),
            (
                0x100000,
                7,
                12,
                6,
                2,
                &[
                    (4, 0x2a000, 2),
                    (5, 0x2a000, 2),
                    (0, 0x2b000, 2),
                    (1, 0x2b000, 2),
                    (2, 0x2b000, 2),
                    (3, 0x2b000, 1),
                ],
            ),
            (
                0x300000,
                5,
                12,
                4,
                1,
                &[(1, 0xc0000, 2), (0, 0xc0000, 2), (2, 0xc0000, 2), (3, 0xc0000, 1)],
            ),
            (
                0x7000,
                2,
                12,
                8,
                3,
                &[(7, 0, 1), (0, 0x1000, 1), (1, 0x1000, 1), (2, 0x1000, 1), (3, 0x1000, 1)],
            ),
        ];
        for (offset, sectors, ashift, children, parity, expected) in cases {
            let raidz = raidz(ashift, children, parity);
            let map = raidz.map(offset, sectors << ashift, Txg(4), Reflow::default()).unwrap();
            assert_eq!(places(&map, ashift as u32), expected, "offset {offset:#x}");
            let data: u64 = map.data_columns().map(|(_, c)| c.size).sum();
            assert_eq!(data, sectors << ashift);
        }
    }

    /// Chapter 03, section 3.2 and section 1.
    #[test]
    fn sizes_of_the_reference() {
        let psizes = [512, 4 << 10, 8 << 10, 20 << 10, 128 << 10, 1 << 20];
        let cases: [(Raidz, [u64; 6]); 4] = [
            (raidz(9, 4, 1), [0x400, 0x1800, 0x2c00, 0x6c00, 0x2ac00, 0x155800]),
            (raidz(12, 5, 1), [0x2000, 0x2000, 0x4000, 0x8000, 0x28000, 0x140000]),
            (raidz(12, 6, 2), [0x3000, 0x3000, 0x6000, 0x9000, 0x30000, 0x180000]),
            (raidz(12, 11, 3), [0x4000, 0x4000, 0x8000, 0x8000, 0x2c000, 0x160000]),
        ];
        for (raidz, expected) in cases {
            assert_eq!(psizes.map(|psize| raidz.asize(psize, Txg(1)).unwrap()), expected);
            for psize in psizes {
                let asize = raidz.asize(psize, Txg(1)).unwrap();
                let back = raidz.psize(asize, Txg(1));
                assert!(back >= psize, "{raidz:?} {psize} -> {asize} -> {back}");
                assert!(raidz.asize(back, Txg(1)).unwrap() <= asize);
            }
        }
        let ratios = [(9, 4, 1), (12, 5, 1), (12, 6, 2), (12, 8, 3), (12, 11, 3)]
            .map(|(ashift, children, parity)| raidz(ashift, children, parity).deflate_ratio());
        assert_eq!(ratios, [383, 409, 341, 292, 372]);
    }

    /// Chapter 03, section 4: a 4-wide raidz1 grown to 5, block at sector 18 with 6 data sectors.
    #[test]
    fn a_block_written_before_an_expansion() {
        let raidz = Raidz::new(12, 5, 1, vec![Txg(100)], false).unwrap();
        assert_eq!((raidz.logical_width(Txg(99)), raidz.logical_width(Txg(100))), (4, 5));
        let map = raidz.map(18 << 12, 6 << 12, Txg(50), Reflow::default()).unwrap();
        let parity: Vec<u64> = map.rows().map(|(_, row)| row[0].sector).collect();
        assert_eq!(parity, [18, 22]);
        let mut data: Vec<_> = map.data_columns().map(|(_, c)| (c.position, c)).collect();
        data.sort_by_key(|(position, _)| *position);
        let sectors: Vec<u64> = data.iter().map(|(_, c)| c.sector).collect();
        assert_eq!(sectors, [19, 23, 20, 24, 21, 25]);
        for (_, column) in data {
            assert_eq!(u64::from(column.child), column.sector % 5);
            assert_eq!(column.offset, (column.sector / 5) << 12);
        }
    }

    /// The row form gives the same sectors as the classic one when the width did not change.
    #[test]
    fn row_form_equals_classic_form() {
        for (children, parity) in [(3, 1), (4, 1), (5, 2), (8, 3)] {
            for sectors in 1..40u64 {
                for offset in [0u64, 0x7000, 0x100000, 0x123000] {
                    let raidz = raidz(12, children, parity);
                    let classic = raidz.classic(offset, sectors << 12, children as u64);
                    let rows = raidz
                        .expanded(offset, sectors << 12, children as u64, Reflow::default())
                        .unwrap();
                    // As many columns in every row: the multipliers of Q and R depend on it.
                    let width = classic.columns().len();
                    assert!(rows.rows().all(|(_, row)| row.len() == width));
                    let mut by_sector = std::collections::BTreeMap::new();
                    for (_, column) in classic.data_columns() {
                        for i in 0..column.size >> 12 {
                            let at = (column.child, column.offset + (i << 12));
                            by_sector.insert(column.position + (i << 12), at);
                        }
                    }
                    let got: std::collections::BTreeMap<_, _> = rows
                        .data_columns()
                        .map(|(_, c)| (c.position, (c.child, c.offset)))
                        .collect();
                    assert_eq!(got, by_sector, "{children} {parity} {sectors} {offset:#x}");
                }
            }
        }
    }

    #[test]
    fn reflow_splits_a_block_between_old_and_new_places() {
        let raidz = Raidz::new(12, 5, 1, Vec::new(), true).unwrap();
        assert_eq!(raidz.asize_of_children(1 << 20), Some(4 << 20));
        let reflow = Reflow::from_word((22 << 12 >> 9) | (4 << 55));
        assert_eq!(reflow, Reflow { offset: 22 << 12, scratch: false });
        let map = raidz.map(18 << 12, 6 << 12, Txg(50), reflow).unwrap();
        let widths: Vec<u64> = map
            .rows()
            .map(
                |(_, row)| {
                    if row.iter().all(|c| u64::from(c.child) == c.sector % 5) { 5 } else { 4 }
                },
            )
            .collect();
        assert_eq!(widths, [5, 4]);
        let scratch = Reflow::from_word((26 << 12 >> 9) | (1 << 55));
        let map = raidz.map(18 << 12, 6 << 12, Txg(50), scratch).unwrap();
        assert!(map.columns().iter().all(|c| c.scratch));
    }

    #[test]
    fn impossible_shapes_and_addresses_are_refused() {
        for (ashift, children, parity) in
            [(0, 5, 1), (8, 5, 1), (17, 5, 1), (12, 5, 0), (12, 5, 4), (12, 3, 3), (12, 256, 1)]
        {
            assert!(Raidz::new(ashift, children, parity, Vec::new(), false).is_err());
        }
        assert!(Raidz::new(12, 3, 1, vec![Txg(1), Txg(2)], false).is_err());
        assert!(Raidz::new(12, 5, 1, vec![Txg(2), Txg(1)], false).is_err());
        let raidz = raidz(12, 5, 1);
        for (offset, size) in
            [(1, 512), (0, 0), (0, 32 << 20), (u64::MAX - 4095, 4096), (0, u64::MAX)]
        {
            assert!(raidz.map(offset, size, Txg(1), Reflow::default()).is_err());
        }
    }
}
