//! Datasets that hold neither files nor a volume, as those that OpenZFS's `ztest` makes.
//!
//! Invariant: they are kept as they are, and their logs are claimed but never replayed.

use cenote_engine::dataset::change::NewDataset;
use cenote_format::blkptr::Dva;
use cenote_format::blkptr_build::StoredBlock;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::Header;
use cenote_format::{Level, ObjectType, Txg};

use super::log::reopen;
use super::{census, layout, make, nothing, zdb};

/// The header of a log whose first block, at `dva`, was never written.
fn header_of_an_empty_log(dva: Dva, birth: Txg) -> [u8; 192] {
    let first = StoredBlock {
        dvas: &[dva],
        lsize: 4096,
        psize: 4096,
        compression: 2,
        checksum_id: 9,
        checksum: [1, 2, 3, 1],
        object_type: ObjectType::INTENT_LOG,
        level: Level(0),
        crypt: false,
        birth,
        fill: 0,
    };
    Header { log: first.pointer().unwrap(), ..Header::decode(&[0; 192]).unwrap() }.encode().unwrap()
}

#[test]
fn logs_of_foreign_datasets_are_claimed() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("foreign", layout("stripe", directory.path()), nothing);
    let parent = live.pool().catalog().root().unwrap().id;
    live.change(move |live, change| {
        let new = NewDataset { parent, name: "other", ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Other(4), |set, _| {
            let dva = Dva { vdev: 0, offset: 96 << 20, asize: 4096, gang: false };
            set.set_zil_header(&header_of_an_empty_log(dva, Txg(1000)))
        })
    })
    .unwrap();
    // Nothing is written any more: as if the power had gone.
    live.gate().fail(cenote_engine::Error::invalid("crash"));
    drop(live);

    let live = reopen(directory.path());
    live.sync().unwrap();
    let catalog = live.pool().catalog();
    let other = catalog.dataset_named("foreign/other").unwrap();
    assert!(catalog.is_foreign(&other).unwrap());
    assert!(!catalog.is_foreign(&catalog.dataset_named("foreign").unwrap()).unwrap());
    let header = catalog.sealed_object_set(&other).unwrap().header().zil_header;
    assert_ne!(Header::decode(&header).unwrap().claim_txg, Txg(0));
    census(live.pool());
    drop((catalog, live));
    zdb(directory.path(), "foreign");
}
