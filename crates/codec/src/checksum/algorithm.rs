//! The checksum algorithms by their ids on disk, with the properties of chapter 02, section 6.1.
//!
//! Invariant: the discriminant of a variant is its id in a block pointer.

/// A checksum algorithm, by the id in bits 40..47 of a block pointer's property word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// No checksum; all words zero.
    Off = 2,
    /// SHA-256 with a trailer: labels, boot environment, uberblocks.
    Label = 3,
    /// SHA-256 with a trailer: gang headers.
    GangHeader = 4,
    /// Fletcher-2 with a trailer at the end: intent-log blocks of pools before version 23.
    Zilog = 5,
    /// Fletcher-2.
    Fletcher2 = 6,
    /// Fletcher-4, the default of user data.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// Fletcher-4 with a trailer in the chain header: intent-log blocks.
    Zilog2 = 9,
    /// No checksum, and raidz does not verify parity (dump devices).
    NoParity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256 keyed with the pool's salt.
    Skein = 12,
    /// Edon-R-512 over a prefix made of the pool's salt, cut to 256 bits.
    Edonr = 13,
    /// BLAKE3 keyed with the pool's salt.
    Blake3 = 14,
}

impl Algorithm {
    /// Every algorithm a block pointer can name, in id order.
    pub const ALL: [Self; 13] = [
        Self::Off,
        Self::Label,
        Self::GangHeader,
        Self::Zilog,
        Self::Fletcher2,
        Self::Fletcher4,
        Self::Sha256,
        Self::Zilog2,
        Self::NoParity,
        Self::Sha512,
        Self::Skein,
        Self::Edonr,
        Self::Blake3,
    ];

    /// The algorithm with this id; `None` for the property-only values 0 and 1 and for ids the
    /// format does not define.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.id() == id)
    }

    /// The id on disk.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The name shown to users, also used inside dedup-table keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::Edonr => "edonr",
            Self::Blake3 => "blake3",
        }
    }

    /// Strong enough for pool metadata.
    pub fn metadata_ok(self) -> bool {
        self.dedup_without_verify()
            || matches!(self, Self::Label | Self::GangHeader | Self::Zilog2 | Self::Fletcher4)
    }

    /// Collisions may be disregarded: dedup need not compare the blocks themselves.
    pub fn dedup_without_verify(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// An unchanged checksum proves an unchanged block, so rewriting it may be skipped.
    pub fn nop_write(self) -> bool {
        self.dedup_without_verify() || self == Self::Edonr
    }

    /// Depends on the pool's salt.
    pub fn salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }

    /// The block holds its own checksum in a trailer.
    pub fn embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// There is something to verify.
    pub fn verifies(self) -> bool {
        !matches!(self, Self::Off | Self::NoParity)
    }
}
