//! Send streams. The first byte says whether the checksums of the stream are made good first, so that changes
//! reach what lies behind them.
#![no_main]

use cenote_engine::stream::{StreamReader, StreamWriter};
use cenote_format::bytes::ByteOrder;
use cenote_format::nvlist::NvList;
use cenote_format::send_stream::{CHECKSUM_AT, HEADER, Record};

/// The stream with sums of zero, which a reader does not compare, but for those of ends.
fn without_sums(data: &[u8]) -> Vec<u8> {
    let mut stream = data.to_vec();
    let mut at = 0;
    while let Some(header) = stream.get(at..).and_then(|rest| rest.first_chunk::<HEADER>()) {
        let Ok(record) = Record::decode(header, ByteOrder::Little) else { break };
        if !matches!(record, Record::Begin(_)) {
            stream[at + CHECKSUM_AT..at + HEADER].fill(0);
        }
        at += HEADER + record.payload_len() as usize;
    }
    stream
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    let stream = if choice & 1 == 0 { data.to_vec() } else { without_sums(data) };
    let mut reader = StreamReader::new(stream.as_slice());
    let mut writer = StreamWriter::new(Vec::new());
    let mut read = Vec::new();
    while let Ok(Some(item)) = reader.record() {
        assert!(item.payload.len() as u64 == item.record.payload_len());
        match &item.record {
            Record::Begin(begin) => {
                let _ = NvList::decode(&item.payload);
                writer.begin(begin, &item.payload).unwrap();
            }
            Record::End(end) => writer.end(end.to_guid).unwrap(),
            record => writer.write(record, &item.payload).unwrap(),
        }
        read.push(item);
    }
    assert!(reader.bytes() <= stream.len() as u64);
    let written = std::mem::take(writer.sink());
    let mut again = StreamReader::new(written.as_slice());
    for item in read {
        let same = again.record().unwrap().unwrap();
        assert_eq!(same.payload, item.payload);
        if !matches!(item.record, Record::End(_)) {
            assert_eq!(same.record, item.record);
        }
    }
});
