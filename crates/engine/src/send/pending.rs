//! Ranges that are free, held back until it is known that no neighbour follows.
//!
//! Chapter 07, section 5. Invariant: records stay in order; what is held back is given out before any record that
//! does not continue it.

use cenote_format::send_stream::{Free, FreeObjects, Record, TO_END};

/// See the module.
#[derive(Default)]
pub(super) struct Pending(Option<Record>);

impl Pending {
    /// Takes the next record; gives out what comes before it, and itself if it is not held back.
    pub(super) fn put(&mut self, record: Record, mut out: impl FnMut(Record)) {
        if let Some(held) = &mut self.0
            && continues(held, &record)
        {
            return;
        }
        if let Some(held) = self.0.take() {
            out(held);
        }
        match record {
            Record::Free(Free { length: TO_END, .. }) => out(record),
            Record::Free(_) | Record::FreeObjects(_) | Record::Redact(_) => self.0 = Some(record),
            other => out(other),
        }
    }

    /// Gives out what is held back.
    pub(super) fn finish(&mut self) -> Option<Record> {
        self.0.take()
    }
}

/// Makes `held` longer by `next`, if that begins where it ends.
fn continues(held: &mut Record, next: &Record) -> bool {
    match (held, next) {
        (Record::Free(held), Record::Free(next)) | (Record::Redact(held), Record::Redact(next)) => {
            let end = held.offset.checked_add(held.length);
            let adjacent =
                held.object == next.object && end == Some(next.offset) && next.length != TO_END;
            let length = held.length.checked_add(next.length).filter(|_| adjacent);
            length.map(|length| held.length = length).is_some()
        }
        (Record::FreeObjects(held), Record::FreeObjects(FreeObjects { first, count, .. })) => {
            let adjacent = held.first.checked_add(held.count) == Some(*first);
            let length = held.count.checked_add(*count).filter(|_| adjacent);
            length.map(|count| held.count = count).is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::Guid;

    use super::*;

    fn free(object: u64, offset: u64, length: u64) -> Record {
        Record::Free(Free { object, offset, length, to_guid: Guid(1) })
    }

    #[test]
    fn neighbours_become_one() {
        let (mut pending, mut out) = (Pending::default(), Vec::new());
        let objects =
            |first, count| Record::FreeObjects(FreeObjects { first, count, to_guid: Guid(1) });
        for record in [
            free(1, 512, TO_END),
            free(1, 512, 512),
            free(1, 1024, 512),
            free(1, 2048, 512),
            free(2, 2560, 512),
            objects(7, 1),
            objects(8, 24),
        ] {
            pending.put(record, |record| out.push(record));
        }
        out.extend(pending.finish());
        let expected = [
            free(1, 512, TO_END),
            free(1, 512, 1024),
            free(1, 2048, 512),
            free(2, 2560, 512),
            objects(7, 25),
        ];
        assert_eq!(out, expected);
    }
}
