//! Noise on a lone disk.
//!
//! Invariant: as in `super`. The noise follows from a seed, as that of the article did.

use super::super::breaking::rot;
use super::super::stage::Stage;

/// The seed of the article.
const SEED: u64 = 32767;

/// What `copies=2` saves of it.
pub fn copies(stage: &mut Stage) -> Result<(), String> {
    stage.tell(
        "One disk, two filesystems: one keeps a single copy of each block, the other two. Then a part \
         of the disk's blocks of 8 KiB becomes noise: 10 %, 1 % and 0.1 %, each on a disk of its own.",
    );
    let mut before = None;
    for (disk, (millionths, words)) in
        [(100_000, "10 %"), (10_000, "1 %"), (1_000, "0.1 %")].into_iter().enumerate()
    {
        let (one, two) = (format!("test/one{disk}"), format!("test/two{disk}"));
        stage.types(&format!("zpool create -O recordsize=16k -R $R test $D/disk{disk}"))?;
        stage.types(&format!("zfs create {one}"))?;
        stage.types(&format!("zfs create -o copies=2 {two}"))?;
        for _ in 0..150 {
            stage.write(&one, 100_000, false)?;
            stage.write(&two, 100_000, false)?;
        }
        stage.types("zpool export test")?;
        stage.happens(&format!("{words} of disk{disk} become noise"), |bench| {
            rot(bench, &format!("disk{disk}"), millionths, SEED).map(|_| ())
        })?;
        stage.types("zpool import -d $D -R $R test")?;
        stage.types("zpool scrub -w test")?;
        stage.types("zpool status test")?;
        let ((all, lost_of_one), (_, lost_of_two)) = (stage.lost(&one), stage.lost(&two));
        stage.check(
            &format!("of {all} files each, {lost_of_one} with one copy are lost, and {lost_of_two} with two"),
            // Where nearly everything is noise, what leads to the files is as well.
            lost_of_two < lost_of_one || lost_of_one == 0 || lost_of_two == all,
        );
        if let Some(before) = before {
            stage.check("less noise costs less", lost_of_two <= before);
        }
        before = Some(lost_of_two);
        stage.types("zpool destroy -f test")?;
    }
    stage.tell(
        "Two copies help against a little rot. They are no mirror: they lie on the same disk, and when \
         that is gone, both are.",
    );
    Ok(())
}
