//! Extended attributes in the intent log of a pool, and the feature that says so.
//!
//! Invariant: no record of an extended attribute is on the disks before the feature that keeps
//! releases away that do not know it.

use cenote_device::{Keep, SimDevice};
use cenote_engine::dataset::Catalog;
use cenote_engine::dataset::change::PropertyInput;
use cenote_posix::tree::{NewNode, ROOT, Tree, XattrWrite};

use crate::pool::{Disks, NAME, census, zdb};
use crate::rig::SUPERUSER;

const FEATURE: &str = "org.openzfs:zilsaxattr";
const NEW: NewNode<'static> = NewNode { mode: 0o100_644, umask: 0, rdev: 0, target: &[] };

fn has_feature(catalog: &Catalog) -> bool {
    let dataset = cenote_posix::live::find(catalog, NAME).unwrap();
    catalog.dataset_features(&dataset).unwrap().contains(&FEATURE)
}

#[test]
fn the_feature_is_there_before_the_first_record() {
    let in_list = PropertyInput::number("xattr", 2);
    let disks = Disks::new("disk").with(&["zilsaxattr"], &[in_list]);
    let live = disks.create();
    let files = disks.files(&live, "new");
    let file = files.create(SUPERUSER, ROOT, b"f", NEW).unwrap().node;
    files.sync(file, false).unwrap();
    assert!(!has_feature(&live.pool().catalog()));
    let set = |name: &[u8]| {
        files.set_xattr(SUPERUSER, file, name, b"value", XattrWrite::Any).unwrap();
        files.sync(file, false).unwrap();
    };
    set(b"user.a");
    assert!(has_feature(&live.pool().catalog()));
    // Now there are records: no group writes this one.
    let held = live.begin().unwrap();
    set(b"user.b");
    let order = SimDevice::newest_order() + 1;
    drop(held);
    let left = disks.cut(order, &mut |_| Keep::Nothing);
    drop((files, live));
    zdb(&left, "with the record");
    let live = left.open("cut");
    let files = left.files(&live, "cut");
    for name in [&b"user.a"[..], b"user.b"] {
        assert_eq!(files.get_xattr(file, name).unwrap(), b"value");
    }
    drop(files);
    live.export().unwrap();
    census(live.pool(), "exported");
    assert!(has_feature(&left.open_to_look("exported").catalog()));
    zdb(&left, "exported");
}
