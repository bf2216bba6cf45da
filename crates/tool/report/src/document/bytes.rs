//! Which bytes of a cache line are used, and by whom.

/// The bytes of a cache line, or of a pair of them, and their users.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ByteMap {
    /// Bytes.
    pub bytes: usize,
    /// The users, in the order of their rows.
    pub users: Vec<ByteUser>,
    /// The map in words, for a reader who cannot see it.
    pub description: String,
}

/// A thread that uses some of the bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ByteUser {
    /// The letter that stands for it.
    pub letter: char,
    /// Its number.
    pub number: u32,
    /// Its name and number.
    pub name: String,
    /// The colour that stands for it, and that of a letter on it, as CSS writes them.
    pub colours: (String, String),
    /// What it does with each byte.
    pub uses: Vec<ByteUse>,
    /// Samples.
    pub weight: f64,
}

/// What a thread does with a byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ByteUse {
    /// Nothing.
    #[default]
    Unused,
    /// Only reads it.
    Read,
    /// Writes it.
    Written,
}

impl ByteUse {
    /// As a letter of the map: a capital one if the byte is written.
    pub(crate) const fn letter(self, of_user: char) -> char {
        match self {
            Self::Unused => '.',
            Self::Read => of_user.to_ascii_lowercase(),
            Self::Written => of_user.to_ascii_uppercase(),
        }
    }
}
