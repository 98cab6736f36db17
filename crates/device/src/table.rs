//! The GUID partition table of a whole disk: what OpenZFS writes there, and what is read of others.
//!
//! Invariant: the table written is that of OpenZFS's `libefi`: the first entry is the pool's, the
//! ninth is reserved, and both copies say the same. What is read comes from
//! anywhere: nothing of it is believed before its bounds and checksums were checked.

use std::io::{Cursor, Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};

use gpt::disk::LogicalBlockSize;
use gpt::header::Header;
use gpt::mbr::{PartRecord, ProtectiveMBR};
use gpt::partition::Partition;
use gpt::partition_types::{MACOS_ZFS, SOLARIS_RESERVED1, Type};
use uuid::Uuid;

/// First sector of the pool's partition.
const START: u64 = 2048;
/// The pool's partition ends before a multiple of this many sectors.
const END_ALIGNMENT: u64 = 2048;
/// Sectors of the reserved partition: 8 MiB of 512 bytes.
const RESERVED: u64 = 16 * 1024;
/// Entries of the table.
const ENTRIES: u32 = 128;
/// Bytes of an entry.
const ENTRY: u32 = 128;
/// Bytes of all entries.
const ARRAY: u64 = (ENTRIES * ENTRY) as u64;
/// Position of the reserved partition's entry, from 0.
const RESERVED_ENTRY: u64 = 8;
/// Most entries of a table that is read.
const ENTRIES_MOST: u32 = 256;

/// Where the partitions of a whole disk lie, in its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of a sector.
    pub sector_size: u64,
    /// Sectors of the disk.
    pub sectors: u64,
    /// First sector of the pool's partition.
    pub start: u64,
    /// Sectors of the pool's partition.
    pub len: u64,
}

impl Layout {
    /// The layout of a disk of `size` bytes; none if there is no room for a pool's partition, or
    /// sectors are neither of 512 nor of 4096 bytes.
    pub fn of(size: u64, sector_size: u64) -> Option<Layout> {
        LogicalBlockSize::try_from(sector_size).ok()?;
        let sectors = size / sector_size;
        let array = ARRAY.div_ceil(sector_size);
        let usable = sectors.checked_sub(array + 1)?;
        let len = usable.checked_sub(RESERVED)?.checked_sub(START)?;
        let len = len / END_ALIGNMENT * END_ALIGNMENT;
        (len > 0).then_some(Layout { sector_size, sectors, start: START, len })
    }

    /// Bytes of the pool's partition.
    pub fn size(&self) -> u64 {
        self.len * self.sector_size
    }

    /// Sectors of one copy: a header and the place of its entries.
    fn copy(&self) -> u64 {
        1 + ARRAY.div_ceil(self.sector_size)
    }
}

/// What makes a table different from every other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Of the disk, the pool's partition and the reserved one.
    pub guids: [Uuid; 3],
    /// Number in the name of the pool's partition.
    pub number: u64,
}

impl Identity {
    /// A new one.
    pub fn random() -> Result<Identity> {
        let guids = [random()?, random()?, random()?];
        let guids = guids.map(|bytes| uuid::Builder::from_random_bytes(bytes).into_uuid());
        Ok(Identity { guids, number: u64::from_le_bytes(random()?) })
    }
}

fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    getrandom::fill(&mut bytes).map_err(|error| Error::other(error.to_string()))?;
    Ok(bytes)
}

/// The bytes of a table: what to write where.
#[derive(Debug)]
pub(crate) struct Table {
    /// From the first byte of the disk: the protective MBR, the header, the entries.
    pub head: Vec<u8>,
    /// At the end of the disk: the entries, the header.
    pub tail: Vec<u8>,
    /// Where `tail` goes, in bytes.
    pub tail_offset: u64,
}

impl Table {
    /// The table of `layout`. The boot code in `old`, the first sector as it is now, is kept.
    pub fn new(layout: &Layout, identity: &Identity, old: &[u8]) -> Result<Table> {
        let sector = LogicalBlockSize::try_from(layout.sector_size)?;
        let copy = layout.copy();
        let last = layout.sectors - 1;
        let [disk, pool, reserved] = identity.guids;
        let primary = Header {
            signature: "EFI PART".to_owned(),
            revision: (1, 0),
            header_size_le: 92,
            crc32: 0,
            reserved: 0,
            current_lba: 1,
            backup_lba: last,
            first_usable: 1 + copy,
            last_usable: last - copy,
            disk_guid: disk,
            part_start: 2,
            num_parts: ENTRIES,
            part_size: ENTRY,
            crc32_parts: 0,
        };
        let backup = Header {
            current_lba: last,
            backup_lba: 1,
            part_start: last - copy + 1,
            ..primary.clone()
        };
        let end = layout.start + layout.len;
        let partition = |kind: Type, guid, first, sectors: u64, name| Partition {
            part_type_guid: kind,
            part_guid: guid,
            first_lba: first,
            last_lba: first + sectors - 1,
            flags: 0,
            name,
        };
        let name = format!("zfs-{:016x}", identity.number);
        let pool = partition(MACOS_ZFS, pool, layout.start, layout.len, name);
        let reserved = partition(SOLARIS_RESERVED1, reserved, end, RESERVED, String::new());
        let write = |window: &mut Window, mut header: Header| {
            for (index, partition) in [(0, &pool), (RESERVED_ENTRY, &reserved)] {
                partition.write_to_device(window, index, header.part_start, sector, ENTRY)?;
            }
            match header.current_lba {
                1 => header.write_primary(window, sector),
                _ => header.write_backup(window, sector),
            }
            .map_err(|error| Error::other(error.to_string()))
        };
        let bytes = |sectors: u64| usize::try_from(sectors * layout.sector_size).unwrap_or(0);
        let mut head = Window { base: 0, bytes: Cursor::new(vec![0; bytes(1 + copy)]) };
        mbr(&mut head, old, last)?;
        write(&mut head, primary)?;
        let tail_offset = (last - copy + 1) * layout.sector_size;
        let mut tail = Window { base: tail_offset, bytes: Cursor::new(vec![0; bytes(copy)]) };
        write(&mut tail, backup)?;
        Ok(Table { head: head.bytes.into_inner(), tail: tail.bytes.into_inner(), tail_offset })
    }
}

/// Puts a protective MBR before a table that ends at sector `last`.
fn mbr(window: &mut Window, old: &[u8], last: u64) -> Result<()> {
    let failed = |error: gpt::mbr::MBRError| Error::other(error.to_string());
    let sectors = u32::try_from(last).unwrap_or(u32::MAX);
    let whole = PartRecord {
        start_head: 0xff,
        start_sector: 0xff,
        start_track: 0xff,
        ..PartRecord::new_protective(Some(sectors))
    };
    let mut new = ProtectiveMBR::new();
    new.set_partition(0, whole);
    let boot = old.get(..512).map(|old| ProtectiveMBR::from_bytes(old, LogicalBlockSize::Lb512));
    if let Some(Ok(old)) = boot {
        new.set_bootcode(*old.bootcode());
        new.set_disk_signature(*old.disk_signature());
    }
    new.overwrite_lba0(window).map_err(failed).map(drop)
}

/// Part of a disk in memory, addressed as the disk is.
#[derive(Debug)]
struct Window {
    base: u64,
    bytes: Cursor<Vec<u8>>,
}

impl Read for Window {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.bytes.read(into)
    }
}

impl Write for Window {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        let room = self.bytes.get_ref().len() as u64 - self.bytes.position().min(self.len());
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(from.len());
        self.bytes.write(from.get(..fits).unwrap_or_default())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for Window {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let outside = || Error::new(ErrorKind::InvalidInput, "outside the window");
        let at = match to {
            SeekFrom::Start(at) => at.checked_sub(self.base).ok_or_else(outside)?,
            SeekFrom::Current(by) => {
                self.bytes.position().checked_add_signed(by).ok_or_else(outside)?
            }
            SeekFrom::End(_) => return Err(outside()),
        };
        self.bytes.set_position(at);
        Ok(self.base + at)
    }
}

impl Window {
    fn len(&self) -> u64 {
        self.bytes.get_ref().len() as u64
    }
}

/// What the table at the start of a disk says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionTable {
    /// There is none.
    Nothing,
    /// There is one, but it is damaged.
    Damaged,
    /// The numbers of the partitions in use, from 1.
    Partitions(Vec<u32>),
}

/// Reads the table in `head`, the first bytes of a disk; it should hold 128 KiB.
pub fn read_table(head: &[u8], sector_size: u64) -> PartitionTable {
    let Ok(sector) = LogicalBlockSize::try_from(sector_size) else {
        return PartitionTable::Nothing;
    };
    let signed = head.get(sector.as_usize()..).is_some_and(|at| at.starts_with(b"EFI PART"));
    if !signed {
        return PartitionTable::Nothing;
    }
    let mut head = Cursor::new(head);
    let Ok(header) = gpt::header::read_header_from_arbitrary_device(&mut head, sector) else {
        return PartitionTable::Damaged;
    };
    if header.part_size != ENTRY || header.num_parts > ENTRIES_MOST || header.current_lba != 1 {
        return PartitionTable::Damaged;
    }
    match gpt::partition::file_read_partitions(&mut head, &header, sector) {
        Ok(all) => {
            let used = all.into_iter().filter(|(_, partition)| partition.is_used());
            PartitionTable::Partitions(used.map(|(number, _)| number).collect())
        }
        Err(_) => PartitionTable::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of one copy as OpenZFS 2.1.11 wrote them, in words: entry, type and place of each
    /// partition, then of the header what does not depend on identities.
    fn facts(bytes: &[u8], header: usize, entries: usize) -> Vec<String> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut facts = Vec::new();
        for index in 0..128 {
            let at = entries + index * 128;
            if bytes[at..at + 128].iter().all(|byte| *byte == 0) {
                continue;
            }
            let kind = Uuid::from_bytes_le(bytes[at..at + 16].try_into().unwrap());
            let name: Vec<u16> = bytes[at + 56..at + 128]
                .chunks_exact(2)
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
                .collect();
            let name = String::from_utf16(&name).unwrap();
            facts.push(format!(
                "{} {kind} {}-{} {:#x} {:?}",
                index + 1,
                number(at + 32),
                number(at + 40),
                number(at + 48),
                name.trim_end_matches('\0'),
            ));
        }
        let mut small = [8, 12, 20].map(|at| number(header + at) as u32).to_vec();
        small.extend([80, 84].map(|at| number(header + at) as u32));
        let large = [24, 32, 40, 48, 72].map(|at| number(header + at));
        facts.push(format!("{small:?} {large:?}"));
        assert!(bytes[header..].starts_with(b"EFI PART"));
        facts
    }

    fn made(size: u64, sector_size: u64, old: &[u8]) -> (Layout, Table) {
        let identity = Identity { number: 0x76a0_28ed_4b5f_c4e9, ..Identity::random().unwrap() };
        let layout = Layout::of(size, sector_size).unwrap();
        (layout, Table::new(&layout, &identity, old).unwrap())
    }

    /// Recorded from OpenZFS 2.1.11: a disk of 400 MiB with sectors of 512 bytes.
    #[test]
    fn a_disk_of_small_sectors_is_divided_as_openzfs_does() {
        let (layout, table) = made(400 << 20, 512, &[]);
        assert_eq!(layout.size(), 399_360 << 10);
        let partitions = [
            "1 6a898cc3-1dd2-11b2-99a6-080020736631 2048-800767 0x0 \"zfs-76a028ed4b5fc4e9\"",
            "9 6a945a3b-1dd2-11b2-99a6-080020736631 800768-817151 0x0 \"\"",
        ];
        let with = |header| [partitions[0], partitions[1], header].map(str::to_owned).to_vec();
        let header = "[65536, 92, 0, 128, 128] [1, 819199, 34, 819166, 2]";
        assert_eq!(facts(&table.head, 512, 1024), with(header));
        let header = "[65536, 92, 0, 128, 128] [819199, 1, 34, 819166, 819167]";
        assert_eq!(facts(&table.tail, 32 * 512, 0), with(header));
        assert_eq!((table.tail_offset, table.tail.len()), (819_167 * 512, 33 * 512));
        assert_eq!(table.head.len(), 34 * 512);
        let mbr = hex(&table.head[446..512]);
        assert!(mbr.starts_with("00ffffffeeffffff01000000ff7f0c00") && mbr.ends_with("0055aa"));
        assert!(table.head[..446].iter().all(|byte| *byte == 0));
    }

    /// Recorded from OpenZFS 2.1.11: a disk of 300 MiB with sectors of 4096 bytes.
    #[test]
    fn a_disk_of_large_sectors_is_divided_as_openzfs_does() {
        let (layout, table) = made(300 << 20, 4096, &[]);
        assert_eq!(layout.size(), 229_376 << 10);
        let name = "zfs-76a028ed4b5fc4e9";
        let expected = [
            format!("1 6a898cc3-1dd2-11b2-99a6-080020736631 2048-59391 0x0 {name:?}"),
            "9 6a945a3b-1dd2-11b2-99a6-080020736631 59392-75775 0x0 \"\"".to_owned(),
            "[65536, 92, 0, 128, 128] [1, 76799, 6, 76794, 2]".to_owned(),
        ];
        assert_eq!(facts(&table.head, 4096, 8192), expected);
        let header = "[65536, 92, 0, 128, 128] [76799, 1, 6, 76794, 76795]";
        assert_eq!(facts(&table.tail, 4 * 4096, 0)[2], header);
        assert_eq!(hex(&table.head[446..464]), "00ffffffeeffffff01000000ff2b01000000");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn boot_code_is_kept_where_there_is_some() {
        let mut old = vec![7; 512];
        let (_, table) = made(64 << 20, 512, &old);
        assert!(table.head[..446].iter().all(|byte| *byte == 0));
        old[510..].copy_from_slice(&[0x55, 0xaa]);
        let (_, table) = made(64 << 20, 512, &old);
        assert!(table.head[..444].iter().all(|byte| *byte == 7));
        assert_eq!(table.head[450], 0xee);
    }

    #[test]
    fn disks_without_room_are_refused() {
        // 8 MiB reserved, 1 MiB before and at least 1 MiB for the pool.
        assert_eq!(Layout::of(10 << 20, 512), None);
        assert_eq!(Layout::of(11 << 20, 512).unwrap().len, 2048);
        assert_eq!(Layout::of(400 << 20, 1024), None);
        assert_eq!(Layout::of(0, 512), None);
        assert!(Layout::of(1 << 50, 4096).is_some());
    }

    #[test]
    fn tables_are_read_with_suspicion() {
        let (_, table) = made(400 << 20, 512, &[]);
        let head = table.head;
        assert_eq!(read_table(&head, 512), PartitionTable::Partitions(vec![1, 9]));
        assert_eq!(read_table(&head, 4096), PartitionTable::Nothing);
        assert_eq!(read_table(&[], 512), PartitionTable::Nothing);
        assert_eq!(read_table(&head[..2000], 512), PartitionTable::Damaged);
        for at in 520..604 {
            let mut bad = head.clone();
            bad[at] ^= 0x81;
            assert_eq!(read_table(&bad, 512), PartitionTable::Damaged, "{at}");
        }
        let mut bad = head;
        bad[1100] ^= 1;
        assert_eq!(read_table(&bad, 512), PartitionTable::Damaged);
    }
}
