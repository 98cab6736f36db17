//! Streams that OpenZFS made, read and written again to the same bytes; damage and cuts.

use std::fs;
use std::io::{self, IoSliceMut, Read};
use std::path::{Path, PathBuf};

use cenote_format::send_stream::{HeaderKind, Record};

use super::{Item, ReadError, StreamReader, StreamWriter};

/// The recorded streams; more of them from the directory `CENOTE_STREAMS`.
fn streams() -> Vec<(String, Vec<u8>)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/streams");
    let more = std::env::var_os("CENOTE_STREAMS").map(PathBuf::from);
    let mut found = Vec::new();
    for directory in [Some(own), more].into_iter().flatten() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let packed = fs::File::open(&path).unwrap();
            if path.extension().is_some_and(|ending| ending == "zst") {
                let stream = zstd::decode_all(packed).unwrap();
                found.push((path.display().to_string(), stream));
            }
        }
    }
    assert!(found.len() >= 3, "the streams of tests/fixtures/streams are missing");
    found
}

fn read_all(stream: &[u8]) -> Result<Vec<Item>, ReadError> {
    let mut reader = StreamReader::new(stream);
    let mut items = Vec::new();
    while let Some(item) = reader.record()? {
        items.push(item);
    }
    assert_eq!(reader.bytes(), stream.len() as u64);
    Ok(items)
}

/// Gives so many bytes at a time, over the borders of buffers.
struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (mut piece, rest) = self.rest.split_at(self.most.min(self.rest.len()));
        let count = piece.read_vectored(buffers)?;
        self.rest = &self.rest[count..];
        assert_eq!(piece.len() + rest.len(), self.rest.len());
        Ok(count)
    }
}

#[test]
fn what_comes_in_pieces_is_read_to_its_end_and_no_further() {
    for (name, stream) in streams() {
        let items = read_all(&stream).unwrap();
        let twice = [stream.as_slice(), &stream].concat();
        for most in [100, 311, 312, 313, 700, 200_000, usize::MAX] {
            let mut pieces = Pieces { rest: &twice, most };
            let mut reader = StreamReader::new(&mut pieces);
            for item in &items {
                let read = reader.record().unwrap().unwrap();
                assert_eq!((&read.record, &read.payload), (&item.record, &item.payload), "{name}");
            }
            assert_eq!(reader.bytes(), stream.len() as u64);
            assert_eq!(pieces.rest.len(), stream.len(), "{name}, {most} at a time");
        }
    }
}

#[test]
fn what_is_read_is_written_to_the_same_bytes() {
    for (name, stream) in streams() {
        let items = read_all(&stream).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let mut writer = StreamWriter::new(Vec::new());
        let mut package = false;
        for (place, Item { record, payload, .. }) in items.iter().enumerate() {
            let last = place + 1 == items.len();
            match record {
                Record::Begin(begin) => {
                    package |= begin.kind == HeaderKind::Compound;
                    writer.begin(begin, payload).unwrap();
                }
                Record::End(_) if package && last => writer.close().unwrap(),
                Record::End(end) => writer.end(end.to_guid).unwrap(),
                record => writer.write(record, payload).unwrap(),
            }
        }
        assert_eq!(writer.bytes(), stream.len() as u64, "{name}");
        assert!(*writer.sink() == stream, "{name} was written to other bytes");
    }
}

#[test]
fn a_damaged_stream_is_refused() {
    let (_, stream) = streams().into_iter().find(|(name, _)| name.ends_with("vol.zst")).unwrap();
    for at in [300, 400, 1000, stream.len() / 2, stream.len() - 300, stream.len() - 1] {
        let mut damaged = stream.clone();
        damaged[at] ^= 1;
        assert!(read_all(&damaged).is_err(), "byte {at}");
    }
    for len in [1, 311, 313, 1000, stream.len() / 2, stream.len() - 1, stream.len() - 312] {
        assert!(matches!(read_all(&stream[..len]), Err(ReadError::Truncated)), "{len} bytes");
    }
    assert!(matches!(read_all(&stream[312..]), Err(ReadError::NoStream)));
    assert!(read_all(&[]).unwrap().is_empty());
}
