//! The bytes of one file, with a size that may exceed the written part.
//!
//! Preallocated space takes no memory here, so a 256 MiB segment or a ballast file is as cheap to record and
//! to materialise as its written part.

/// Content and size of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileImage {
    /// The bytes up to the end of the last write; the rest up to `bytes` reads as zeros.
    written: Vec<u8>,
    bytes: u64,
}

impl FileImage {
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn written(&self) -> &[u8] {
        &self.written
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.bytes.min(offset.saturating_add(length as u64));
        let mut out = vec![0; index(end.saturating_sub(offset))];
        let start = index(offset).min(self.written.len());
        let stored = &self.written[start..index(end).clamp(start, self.written.len())];
        out[..stored.len()].copy_from_slice(stored);
        out
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let start = index(offset);
        // Appended in one piece, since this runs for each state: `Vec::resize` works byte by byte where this
        // crate is not optimised.
        if let Some(gap) = start.checked_sub(self.written.len()) {
            self.written.append(&mut vec![0; gap]);
        }
        let (over, beyond) = data.split_at(data.len().min(self.written.len() - start));
        self.written[start..start + over.len()].copy_from_slice(over);
        self.written.extend_from_slice(beyond);
        self.grow(offset + data.len() as u64);
    }

    pub(crate) fn resize(&mut self, bytes: u64) {
        self.written.truncate(index(bytes));
        self.bytes = bytes;
    }

    /// Makes the file at least `bytes` long.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
    }

    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) {
        let start = index(offset).min(self.written.len());
        let end = index(offset.saturating_add(bytes)).min(self.written.len());
        self.written[start..end].fill(0);
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("file offsets fit the address space")
}

mod tests {
    use super::FileImage;

    #[test]
    fn truncated_bytes_read_as_zeros_when_the_file_grows_again() {
        let mut image = FileImage::default();
        image.write(0, b"abcdef");
        image.resize(2);
        image.write(4, b"z");
        assert_eq!(image.read(0, 100), b"ab\0\0z");
    }

    #[test]
    fn allocated_space_reads_as_zeros_and_costs_nothing() {
        let mut image = FileImage::default();
        image.write(0, b"x");
        image.grow(1 << 30);
        assert_eq!(image.read(0, 3), b"x\0\0");
        assert_eq!(image.read((1 << 30) - 1, 10), b"\0");
        assert_eq!(image.written().len(), 1);
    }
}
