//! Messages on the control socket: their framing, their version, and descriptors that go with them.
//!
//! A frame is its length (u32, little-endian) and that many bytes of JSON, an [`Envelope`]. Descriptors
//! go with the first byte of a frame. Invariant: no frame is longer than [`FRAME_MAX`], none brings more
//! than [`DESCRIPTORS_MAX`] descriptors, and whatever is sent or received has a deadline. This framing and
//! the envelope stay as they are in all versions, so that two versions can always say which they are.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// Version of the messages; both sides must have the same.
pub const VERSION: u32 = 15;
/// Longest frame in bytes.
pub const FRAME_MAX: usize = 64 << 20;
/// Most descriptors that go with a message.
pub const DESCRIPTORS_MAX: usize = 4;

/// A message with its version.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Version of the sender.
    pub version: u32,
    /// The message.
    pub message: T,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The socket.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The deadline passed.
    #[error("no answer in time")]
    Deadline,
    /// A frame is too long.
    #[error("message of {0} bytes is too long")]
    TooLong(usize),
    /// More descriptors than a message may bring.
    #[error("message brings more than {DESCRIPTORS_MAX} descriptors")]
    TooManyDescriptors,
    /// Not JSON of the right shape.
    #[error("message not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version of Cenote.
    #[error("speaks version {0} of the control protocol, not {VERSION}")]
    Version(u32),
}

/// The bytes of a message on the socket.
///
/// # Errors
/// If it is too long.
pub fn framed<T: Serialize>(message: T) -> Result<Zeroizing<Vec<u8>>, ExchangeError> {
    let mut bytes = Zeroizing::new(vec![0; 4]);
    serde_json::to_writer(&mut *bytes, &Envelope { version: VERSION, message })?;
    let body = bytes.len() - 4;
    let length = u32::try_from(body).ok().filter(|_| body <= FRAME_MAX);
    let length = length.ok_or(ExchangeError::TooLong(body))?;
    if let Some(head) = bytes.first_chunk_mut() {
        *head = length.to_le_bytes();
    }
    Ok(bytes)
}

/// Connects to the socket at `path`.
///
/// # Errors
/// `Deadline` if whoever listens there has not taken it after `within`, because more connect than he takes.
pub fn connect(path: &Path, within: Duration) -> Result<UnixStream, ExchangeError> {
    let failed = |error: Errno| ExchangeError::Io(error.into());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(failed)?;
    set_socket_timeout(&socket, Timeout::Send, Some(within)).map_err(failed)?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => Err(ExchangeError::Deadline),
        Err(error) => Err(failed(error)),
    }
}

/// Stream with one deadline for everything read and written through it.
#[derive(Debug)]
pub struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    /// Everything must be done `after` from now.
    pub fn new(stream: &'a UnixStream, after: Duration) -> Timed<'a> {
        Timed { stream, end: Instant::now() + after }
    }

    fn left(&self) -> Result<Duration, ExchangeError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ExchangeError::Deadline) } else { Ok(left) }
    }

    /// Reads bytes, and descriptors that come with them.
    fn read_all(
        &self,
        mut into: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), ExchangeError> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut with = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(into)];
            match recvmsg(self.stream, parts, &mut with, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => {
                    for message in with.drain() {
                        if let RecvAncillaryMessage::ScmRights(more) = message {
                            descriptors.extend(more);
                        }
                    }
                    let is_cut = got.flags.contains(ReturnFlags::CTRUNC);
                    if is_cut || descriptors.len() > DESCRIPTORS_MAX {
                        return Err(ExchangeError::TooManyDescriptors);
                    }
                    if got.bytes == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                    into = into.get_mut(got.bytes..).unwrap_or(&mut []);
                }
                Err(error) => again(error.into())?,
            }
        }
        Ok(())
    }

    /// Writes these bytes.
    ///
    /// # Errors
    /// If they cannot be written in time.
    pub fn write_all(&self, mut from: &[u8]) -> Result<(), ExchangeError> {
        while !from.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match (&mut &*self.stream).write(from) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => from = from.get(count..).unwrap_or(&[]),
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If it cannot be sent in time.
    pub fn send<T: Serialize>(&self, message: T) -> Result<(), ExchangeError> {
        self.send_with(message, &[])
    }

    /// Sends one message and descriptors of which the other side gets its own.
    ///
    /// # Errors
    /// If it cannot be sent in time, or there are too many.
    pub fn send_with<T: Serialize>(
        &self,
        message: T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ExchangeError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(ExchangeError::TooManyDescriptors);
        }
        let bytes = framed(message)?;
        let mut rest = &bytes[..];
        while !descriptors.is_empty() && rest.len() == bytes.len() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            if !with.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(ExchangeError::TooManyDescriptors);
            }
            match sendmsg(self.stream, &[IoSlice::new(rest)], &mut with, SendFlags::NOSIGNAL) {
                Ok(count) => rest = rest.get(count..).unwrap_or(&[]),
                Err(error) => again(error.into())?,
            }
        }
        self.write_all(rest)
    }

    /// Receives one message.
    ///
    /// # Errors
    /// If none comes in time, or not one of this type and version.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<T, ExchangeError> {
        self.receive_with().map(|(message, _)| message)
    }

    /// Receives one message and the descriptors that come with it.
    ///
    /// # Errors
    /// If none comes in time, or not one of this type and version, or with too many descriptors.
    pub fn receive_with<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ExchangeError> {
        self.receive_at_most(FRAME_MAX)
    }

    /// As [`Self::receive_with`], of a message of `most` bytes.
    ///
    /// # Errors
    /// As that; if it is longer.
    pub fn receive_at_most<T: DeserializeOwned>(
        &self,
        most: usize,
    ) -> Result<(T, Vec<OwnedFd>), ExchangeError> {
        let (mut length, mut descriptors) = ([0; 4], Vec::new());
        self.read_all(&mut length, &mut descriptors)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > most.min(FRAME_MAX) {
            return Err(ExchangeError::TooLong(length));
        }
        let mut bytes = Vec::new();
        // in steps, so that a lying length takes no memory
        while bytes.len() < length {
            let start = bytes.len();
            bytes.resize(length.min(start + (1 << 20)), 0);
            self.read_all(bytes.get_mut(start..).unwrap_or(&mut []), &mut descriptors)?;
        }
        let message = open(&bytes);
        bytes.zeroize();
        Ok((message?, descriptors))
    }
}

fn open<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ExchangeError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let version = serde_json::from_slice::<Version>(bytes)?.version;
    if version != VERSION {
        return Err(ExchangeError::Version(version));
    }
    Ok(serde_json::from_slice::<Envelope<T>>(bytes)?.message)
}

fn again(error: io::Error) -> Result<(), ExchangeError> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(ExchangeError::Deadline),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    const WAIT: Duration = Duration::from_secs(2);

    fn raw(json: &str) -> Vec<u8> {
        let length = u32::try_from(json.len()).unwrap();
        [&length.to_le_bytes()[..], json.as_bytes()].concat()
    }

    #[test]
    fn who_takes_no_connections_is_not_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let none = connect(&path, WAIT).unwrap_err();
        assert!(matches!(&none, ExchangeError::Io(e) if e.kind() == io::ErrorKind::NotFound));
        let kind = SocketType::STREAM;
        let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let taken = connect(&path, WAIT).unwrap();
        let error = connect(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ExchangeError::Deadline), "{error}");
        let _taken = (rustix::net::accept(&listener).unwrap(), taken);
        connect(&path, WAIT).unwrap();
    }

    #[test]
    fn messages_cross_a_socket_and_other_versions_are_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        Timed::new(&a, WAIT).send("a message").unwrap();
        let got: String = Timed::new(&b, WAIT).receive().unwrap();
        assert_eq!(got, "a message");

        let other = raw(r#"{"version":999,"message":{"New":1},"more":2}"#);
        Timed::new(&a, WAIT).write_all(&other).unwrap();
        let error = Timed::new(&b, WAIT).receive::<String>().unwrap_err();
        assert!(matches!(error, ExchangeError::Version(999)), "{error}");

        Timed::new(&a, WAIT).write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = Timed::new(&b, WAIT).receive::<String>().unwrap_err();
        assert!(matches!(error, ExchangeError::TooLong(_)), "{error}");
        let error = Timed::new(&b, Duration::from_millis(20)).receive::<String>().unwrap_err();
        assert!(matches!(error, ExchangeError::Deadline), "{error}");
    }

    #[test]
    fn descriptors_cross_with_a_message_however_it_is_cut() {
        let (a, b) = UnixStream::pair().unwrap();
        // longer than the socket holds, so that it goes in several pieces
        let long = "x".repeat(3 << 20);
        let (read, write) = io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Timed::new(&a, WAIT).send_with(&long, &[read.as_fd(), write.as_fd()]).unwrap();
                Timed::new(&a, WAIT).send("none").unwrap();
            });
            let (got, mut with): (String, _) = Timed::new(&b, WAIT).receive_with().unwrap();
            assert_eq!((got.len(), with.len()), (long.len(), 2));
            let (last, first) = (with.pop().unwrap(), with.pop().unwrap());
            std::fs::File::from(last).write_all(b"through").unwrap();
            let mut bytes = [0; 7];
            std::fs::File::from(first).read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"through");
            let (_, with): (String, _) = Timed::new(&b, WAIT).receive_with().unwrap();
            assert!(with.is_empty());
        });
    }

    #[test]
    fn more_descriptors_than_allowed_are_refused_and_closed() {
        let (a, b) = UnixStream::pair().unwrap();
        let (read, write) = io::pipe().unwrap();
        let timed = Timed::new(&a, WAIT);
        let five = [write.as_fd(); DESCRIPTORS_MAX + 1];
        let error = timed.send_with("five", &five).unwrap_err();
        assert!(matches!(error, ExchangeError::TooManyDescriptors), "{error}");

        // by somebody who does not keep to it: some with each of two pieces
        let bytes = framed("pieces").unwrap();
        for piece in [&bytes[..3], &bytes[3..]] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            let three = [write.as_fd(); 3];
            assert!(with.push(SendAncillaryMessage::ScmRights(&three)));
            sendmsg(&a, &[IoSlice::new(piece)], &mut with, SendFlags::empty()).unwrap();
        }
        let error = Timed::new(&b, WAIT).receive_with::<String>().unwrap_err();
        assert!(matches!(error, ExchangeError::TooManyDescriptors), "{error}");
        drop((write, b));
        // nobody holds the other end any more
        assert_eq!((&read).read(&mut [0]).unwrap(), 0);
    }
}
