//! What the bonus of an object says.
//!
//! Chapters 04 (section 6), 05 and 06. Invariant: a bonus that does not decode is told as such,
//! with the reason, and its bytes are shown.

use cenote_engine::object::Object;
use cenote_format::bpobj::BpobjHeader;
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::history::HistoryHeader;
use cenote_format::space_map::SpaceMapHeader;
use cenote_format::{ObjectType, Result, deadlist};
use serde_json::json;

use super::described::Described;
use super::files::Files;
use super::pointer;

/// Adds what the bonus of `object` says.
pub fn describe(out: &mut Described, object: &Object, files: &Files) {
    let dnode = object.dnode();
    let bonus = dnode.bonus();
    if bonus.is_empty() {
        return;
    }
    let mut inner = Described::default();
    let decoded = match dnode.bonus_type {
        ObjectType::DSL_DIRECTORY => directory(&mut inner, bonus),
        ObjectType::DSL_DATASET => dataset(&mut inner, bonus),
        ObjectType::BPOBJ_HEADER => bpobj(&mut inner, bonus),
        ObjectType::DEADLIST_HEADER => dead(&mut inner, bonus),
        ObjectType::SPACE_MAP_HEADER => space_map(&mut inner, bonus),
        ObjectType::HISTORY_OFFSETS => history(&mut inner, bonus),
        ObjectType::SYSTEM_ATTRIBUTES | ObjectType::ZNODE => {
            files.describe(&mut inner, object);
            Ok(())
        }
        _ => {
            bytes(&mut inner, bonus);
            Ok(())
        }
    };
    if let Err(error) = decoded {
        inner.failed("bonus not decoded", error);
        bytes(&mut inner, bonus);
    }
    out.nest("bonus", inner);
}

fn bytes(out: &mut Described, bonus: &[u8]) {
    let hex: String = bonus.iter().map(|byte| format!("{byte:02x}")).collect();
    // All zero says nothing more than its length.
    if bonus.iter().any(|byte| *byte != 0) {
        let rows = hex.as_bytes().chunks(64);
        rows.for_each(|row| out.line(format!("\t\t{}", String::from_utf8_lossy(row))));
    }
    out.fact("bytes", hex);
}

fn directory(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let phys = DslDirectory::decode(bonus)?;
    out.moment("creation_time", phys.creation_time);
    out.number("head_dataset_obj", phys.head_dataset.0);
    out.number("parent_dir_obj", phys.parent.0);
    out.number("origin_obj", phys.origin.0);
    out.number("child_dir_zapobj", phys.child_map.0);
    out.size("used_bytes", phys.used_bytes);
    out.size("compressed_bytes", phys.compressed_bytes);
    out.size("uncompressed_bytes", phys.uncompressed_bytes);
    out.size("quota", phys.quota);
    out.size("reserved", phys.reserved);
    out.number("props_zapobj", phys.properties.0);
    out.number("deleg_zapobj", phys.delegation.0);
    out.field("flags", format!("{:x}", phys.flags), phys.flags);
    let used = phys.used_breakdown;
    out.size("used_breakdown[HEAD]", used.head);
    out.size("used_breakdown[SNAP]", used.snapshots);
    out.size("used_breakdown[CHILD]", used.children);
    out.size("used_breakdown[CHILD_RSRV]", used.child_reservations);
    out.size("used_breakdown[REFRSRV]", used.refreservation);
    out.number("clones", phys.clones.0);
    Ok(())
}

fn dataset(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let phys = DslDataset::decode(bonus)?;
    out.number("dir_obj", phys.directory.0);
    out.number("prev_snap_obj", phys.previous_snapshot.0);
    out.number("prev_snap_txg", phys.previous_snapshot_txg.0);
    out.number("next_snap_obj", phys.next_snapshot.0);
    out.number("snapnames_zapobj", phys.snapshot_names.0);
    out.number("num_children", phys.children);
    out.number("userrefs_obj", phys.holds.0);
    out.moment("creation_time", phys.creation_time);
    out.number("creation_txg", phys.creation_txg.0);
    out.number("deadlist_obj", phys.deadlist.0);
    out.size("used_bytes", phys.referenced_bytes);
    out.size("compressed_bytes", phys.compressed_bytes);
    out.size("uncompressed_bytes", phys.uncompressed_bytes);
    out.size("unique", phys.unique_bytes);
    out.number("fsid_guid", phys.fsid_guid.0);
    out.number("guid", phys.guid.0);
    out.field("flags", format!("{:x}", phys.flags), phys.flags);
    out.number("next_clones_obj", phys.next_clones.0);
    out.number("props_obj", phys.properties.0);
    out.field("bp", pointer::long(&phys.pointer), pointer::value(&phys.pointer));
    Ok(())
}

fn bpobj(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let header = BpobjHeader::decode(bonus)?;
    out.number("num_blkptrs", header.pointers);
    out.size("bytes", header.space.used);
    if header.bonus_len >= cenote_format::bpobj::BONUS_WITH_COMPRESSED {
        out.size("comp", header.space.compressed);
        out.size("uncomp", header.space.uncompressed);
    }
    if header.bonus_len >= cenote_format::bpobj::BONUS_WITH_SUBOBJECTS {
        out.number("subobjs", header.subobjects.0);
        out.number("num_subobjs", header.subobject_count);
    }
    if header.bonus_len >= cenote_format::bpobj::BONUS_WITH_FREED {
        out.number("num_freed", header.freed);
    }
    Ok(())
}

fn dead(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let space = deadlist::decode_header(bonus)?;
    out.size("used", space.used);
    out.size("comp", space.compressed);
    out.size("uncomp", space.uncompressed);
    Ok(())
}

fn space_map(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let header = SpaceMapHeader::decode(bonus)?;
    out.number("smp_object", header.object.0);
    out.field("smp_length", format!("{:#x}", header.length), header.length);
    out.field("smp_alloc", format!("{:#x}", header.allocated), header.allocated);
    if let Some(histogram) = header.histogram {
        out.fact("histogram", json!(histogram));
    }
    Ok(())
}

fn history(out: &mut Described, bonus: &[u8]) -> Result<()> {
    let header = HistoryHeader::decode(bonus)?;
    out.field("offsets", format!("{header:?}"), json!(format!("{header:?}")));
    Ok(())
}
