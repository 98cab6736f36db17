//! Applying records of the intent log.
