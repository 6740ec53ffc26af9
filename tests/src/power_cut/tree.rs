//! A crash state as files, ready for the real recovery.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::FileImage;
use crate::recording::{Ino, InodeShape, ROOT};

/// Names and bytes that a power cut left.
#[derive(Debug)]
pub(crate) struct CrashTree {
    pub(crate) files: HashMap<Ino, FileImage>,
    pub(crate) directories: HashMap<Ino, BTreeMap<Arc<str>, Ino>>,
    pub(crate) shapes: HashMap<Ino, InodeShape>,
}

impl CrashTree {
    /// Every path with its bytes (`None` for a directory), for comparisons in the model's own tests.
    pub(crate) fn paths(&self) -> BTreeMap<String, Option<FileImage>> {
        let mut out = BTreeMap::new();
        self.visit_entries(ROOT, "", &mut |path, ino| {
            let image = (!self.shape(ino).directory).then(|| self.image(ino));
            out.insert(path.to_owned(), image);
        });
        out
    }

    /// Writes the state below `root`, which must be an empty directory.
    pub(crate) fn write_to(&self, root: &Path) -> std::io::Result<()> {
        let mut first: HashMap<Ino, PathBuf> = HashMap::new();
        let mut result = Ok(());
        self.visit_entries(ROOT, "", &mut |path, ino| {
            if result.is_ok() {
                result = self.write_one(&root.join(path), ino, &mut first);
            }
        });
        result
    }

    fn write_one(&self, path: &Path, ino: Ino, first: &mut HashMap<Ino, PathBuf>) -> std::io::Result<()> {
        let shape = self.shape(ino);
        if shape.directory {
            fs::create_dir(path)?;
            return fs::set_permissions(path, fs::Permissions::from_mode(shape.mode & 0o777));
        }
        if let Some(linked) = first.get(&ino) {
            return fs::hard_link(linked, path);
        }
        let mode = shape.mode & 0o777;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        if let Some(image) = self.files.get(&ino) {
            file.write_all(image.written())?;
            file.set_len(image.bytes())?;
        }
        first.insert(ino, path.to_owned());
        Ok(())
    }

    fn visit_entries(&self, dir: Ino, prefix: &str, visit: &mut dyn FnMut(&str, Ino)) {
        let Some(names) = self.directories.get(&dir) else { return };
        for (name, ino) in names {
            let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
            visit(&path, *ino);
            if self.shape(*ino).directory {
                self.visit_entries(*ino, &path, visit);
            }
        }
    }

    fn shape(&self, ino: Ino) -> InodeShape {
        *self.shapes.get(&ino).expect("every inode was recorded with its shape")
    }

    fn image(&self, ino: Ino) -> FileImage {
        self.files.get(&ino).cloned().unwrap_or_default()
    }
}
